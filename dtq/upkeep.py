"""What keeps the engine going without anybody asking: due tasks, ended leases, ended retentions, lost places.

The leader does it on time; any other worker may, and does when something is late. All of it is safe to do twice.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from dtq.keys import Keys
from dtq.redisio import Server
from dtq.scripts import Scripts
from dtq.serverinfo import QuietTime
from dtq.states import TERMINAL, Status

log = logging.getLogger(__name__)

IDLE_QUEUE_MS = 86_400_000
MOST_A_SCRIPT = 100
QUEUES_A_SCRIPT = 20
QUEUES_A_LOOK = 100
"""An empty queue costs a look at the lengths of its ten bands."""
SCRIPTS_A_STEP = 20
QUEUES_A_CHECK = 100
_IN_STREAMS = (Status.QUEUED, Status.RUNNING)
_IN_SCHEDULE = (Status.PENDING, Status.RETRYING)
_LIVE = tuple(status for status in Status if status not in TERMINAL)


class Promotion(NamedTuple):
    """What became due, and the seconds until the next does (None: nothing is scheduled)."""

    moved: int
    next_due_s: float | None


class Reconciliation(NamedTuple):
    """What one step of the reconciler did."""

    looked_at: int
    repaired: int
    finished_round: bool
    """Whether every task has been looked at with this step."""


class Upkeep:
    """Each method does one bounded step and raises RedisUnavailable when Redis is away."""

    def __init__(self, server: Server, keys: Keys, scripts: Scripts) -> None:
        self._server = server
        self._keys = keys
        self._scripts = scripts
        self._quiet = QuietTime(server, watch_clock=True)
        self._places: deque[tuple[str, Status]] = deque()
        """What the reconciler has not looked at in this round; of the first it has looked at `_rank` tasks."""
        self._rank = 0
        self._gaps: dict[str, int] = {}
        """By queue ('' for the schedule): how many tasks without a place were counted and are not looked for again."""
        self._taken: list[bytes] = []
        """Keys in the places of streams that something else has put there, as they were logged."""
        self._wanted: set[tuple[str, Status]] = set()
        """Which of the places are looked at because of such a count."""

    def note_time(self, redis_s: float, asked_at: float) -> None:
        """Take in what Redis's clock showed between `asked_at` (monotonic) and now: a leap that comes is noticed."""
        self._quiet.note_time(redis_s, asked_at)

    def promote(self, limit: int = 100, late_ms: int = 0) -> Promotion:
        """Move up to `limit` (at most 100) tasks to their streams that are due, or already `late_ms` past it."""
        moved, due, now = self._scripts.run("task_promote", limit=min(limit, MOST_A_SCRIPT), late_ms=late_ms)
        return Promotion(moved, max(0.0, (float(due) - float(now)) / 1000) if due else None)

    def reclaim(self, limit: int = 100, late_ms: int = 0) -> int:
        """Put tasks whose lease ended back to the front of their bands, or among the dead letters.

        The longest lease that a registered worker has published decides. Right after Redis was away, or restarted,
        nothing is taken: owners could not renew either. Returns how many tasks were taken from their workers.
        """
        quiet_ms = self._quiet.ms()
        left, reclaimed = min(limit, MOST_A_SCRIPT), 0
        queues = self._queues()
        for start in range(0, len(queues), QUEUES_A_LOOK):
            items = [(queue,) for queue in queues[start : start + QUEUES_A_LOOK]]
            taken, _, looked_at = self._scripts.run(
                "task_reclaim", items=items, limit=left, late_ms=late_ms, quiet_ms=quiet_ms
            )
            reclaimed += taken
            left -= looked_at
            if left <= 0:
                break
        return reclaimed

    def sweep(self, limit: int = 200) -> int:
        """Remove what has outlived its retention: tasks, records of dead workers, forgotten queues.

        Returns the number of tasks that were looked at; when it is `limit`, there may be more.
        """
        looked_at: int
        looked_at, stale, unused, newer, evicted = self._scripts.run(
            "sweep_finished", limit=limit, idle_ms=IDLE_QUEUE_MS
        )
        if newer:
            log.warning("ended tasks of a newer dtq are left to a newer worker", extra={"tasks": newer})
        if evicted != b"0":
            log.warning(
                "dead letters fell out of the full stream: requeue or discard some, or raise DTQ_DLQ_MAXLEN",
                extra={"dead_letters": int(evicted)},
            )
        for worker_id in map(bytes.decode, stale):
            if not self.forget(worker_id, self._queues()):  # else its tasks are reclaimed first
                self._scripts.run("worker_leave", worker=worker_id, gone="1")
        for queue in map(bytes.decode, unused):
            self._scripts.run("sweep_queue", queue=queue, idle_ms=IDLE_QUEUE_MS)
        return looked_at

    def sample(self) -> None:
        """Note for the charts how much waits in each queue, and for how long."""
        queues = self._queues()
        for start in range(0, max(1, len(queues)), QUEUES_A_SCRIPT):  # no queue at all was seen, too
            self._scripts.run("sample_queues", items=[(queue,) for queue in queues[start : start + QUEUES_A_SCRIPT]])

    def forget(self, worker_id: str, queues: Sequence[str]) -> int:
        """Remove a worker's consumers from queues, where nothing is pending. Returns in how many bands something is."""
        busy = 0
        for start in range(0, len(queues), QUEUES_A_SCRIPT):
            items = [(queue,) for queue in queues[start : start + QUEUES_A_SCRIPT]]
            busy += self._scripts.run("worker_forget", worker=worker_id, items=items)
        return busy

    def reconcile(self, limit: int = 200) -> Reconciliation:
        """Look at about `limit` tasks that have not ended; put back in place what has come apart from its record.

        One object walks round after round through all of them. The step that ends a round says so.
        """
        looked_at = repaired = 0
        for _ in range(SCRIPTS_A_STEP):
            if not self._places:
                self._places.extend((queue, status) for queue in self._queues() for status in _LIVE)
                if not self._places:
                    return Reconciliation(0, 0, True)
            queue, status = self._places[0]
            looked, mended, gone = self._scripts.run(
                "reconcile", queue=queue, status=status.value, start=self._rank, limit=limit
            )
            looked_at, repaired, self._rank = looked_at + looked, repaired + mended, self._rank + looked - gone
            if mended:
                place = queue if status in _IN_STREAMS else ""
                self._gaps[place] = max(0, self._gaps.get(place, 0) - mended)
            if looked < limit:
                self._wanted.discard(self._places.popleft())
                self._rank = 0
            if looked_at >= limit or not self._places:
                break
        return Reconciliation(looked_at, repaired, not self._places)

    def check(self) -> bool:
        """Look whether streams or schedule hold less than they should, and ring where work waits.

        Returns whether `reconcile` has something new to look for; it begins there.
        """
        queues = self._queues()
        found: dict[str, int] = {}
        taken: list[bytes] = []
        for start in range(0, len(queues), QUEUES_A_CHECK):
            chunk = queues[start : start + QUEUES_A_CHECK]
            missing, foreign, *gaps = self._scripts.run(
                "check_queues", items=[(queue,) for queue in chunk], all="1" if len(chunk) == len(queues) else "0"
            )
            taken += foreign
            found.update({"": missing} if missing else {})
            found.update((queue.decode(), int(gap)) for queue, gap in zip(gaps[::2], gaps[1::2], strict=True))
        if taken and taken != self._taken:
            keys = b" ".join(taken).decode()
            log.error("something else has put keys in the places of streams, and tasks wait", extra={"keys": keys})
        self._taken = taken
        # What stays after a look is in good hands: a living worker runs it without its ticket, for example
        before, self._gaps = self._gaps, found
        new = False
        for queue, gap in found.items():
            if gap <= before.get(queue, 0):
                continue
            places = [
                (name, status)
                for name in ([queue] if queue else queues)
                for status in (_IN_STREAMS if queue else _IN_SCHEDULE)
            ]
            if self._wanted.isdisjoint(places):  # else it is being looked for
                self._wanted.update(places)
                self._places.extendleft(places)
                self._rank, new = 0, True
        return new

    def _queues(self) -> list[str]:
        return [name.decode() for name in self._server.call("ZRANGE", self._keys.queues(), 0, -1)]
