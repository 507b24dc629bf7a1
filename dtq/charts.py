"""What the charts draw: the counters and gauges of the last minutes, the same for every process and after a restart.

A minute that is over never changes, so it is read from Redis once and kept; a refresh costs the minute that runs.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dtq.keys import Keys
from dtq.limits import script_limits
from dtq.redisio import Server
from dtq.scripts import Scripts
from dtq.settings import Settings

HOUR = 60
PAIRS_A_SCRIPT = 120
"""Minutes of queues that one script adds up."""
GAUGES_A_SCRIPT = 15
MOST_SCRIPTS = 25
"""A read that would need more is completed by the next ones: a page must not wait for a thousand queues."""

ENDED_WELL = ("succeeded",)
ENDED_BADLY = ("dead_lettered", "failed")
FAILED_ATTEMPTS = ("dead_lettered", "failed", "retried")
CAME_IN = ("submitted", "requeued")

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """The last minutes of some queues, oldest first. The last one is still filling."""

    first_minute: int
    """Epoch seconds / 60."""
    second: int
    """How many seconds of the last minute have passed."""
    counted: Mapping[str, Sequence[Counts]]
    """What happened, by queue: counters by minute."""
    gauges: Sequence[Mapping[str, int] | None]
    """What was there at most, fields `queue:what`, by minute; None: nobody has looked in that minute."""
    complete: bool
    """False: some of it has not been read yet, and counts as nothing."""

    def counts(self, *whats: str, queue: str | None = None) -> list[int]:
        """Return how often it happened in each minute, in one queue or in all."""
        queues = self.counted.values() if queue is None else [self.counted.get(queue, [{}] * len(self.gauges))]
        minutes = zip(*queues, strict=True) if queues else [()] * len(self.gauges)
        return [sum(counts.get(what, 0) for counts in minute for what in whats) for minute in minutes]

    def recent(self, *whats: str, queue: str, minutes: int) -> int:
        """Return how often it happened in a queue in the last minutes."""
        last = self.counted.get(queue, ())[-minutes:]
        return sum(counts.get(what, 0) for counts in last for what in whats)

    def most(self, what: str, queue: str | None = None) -> list[int | None]:
        """Return how much there was in each minute: the sum over the queues, of `oldest` (seconds) the highest."""
        combine = max if what == "oldest" else sum
        return [None if seen is None else combine(_matching(seen, what, queue)) for seen in self.gauges]


def _matching(seen: Mapping[str, int], what: str, queue: str | None) -> list[int]:
    if queue is not None:
        return [seen.get(f"{queue}:{what}", 0)]
    return [0, *(number for field, number in seen.items() if field.endswith(f":{what}"))]


class Charts:
    """Reads of one namespace. Safe to use from any thread. Every method raises RedisUnavailable when Redis is away."""

    def __init__(self, server: Server, settings: Settings) -> None:
        """server: connected; nothing is sent yet."""
        self._server = server
        self._keys = Keys(settings.namespace)
        self._scripts = Scripts(server, self._keys, script_limits(settings))
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, int], Counts] = {}
        self._gauges: dict[int, Mapping[str, int] | None] = {}

    def hour(self, queues: Sequence[str], minutes: int = HOUR) -> Hour:
        """Return the last minutes of the queues, the running one included."""
        now = int(self._server.call("TIME")[0])
        last, second = divmod(now, 60)
        span = range(last - minutes + 1, last + 1)
        counts, complete = self._read_counts(queues, span)
        gauges = self._read_gauges(span)
        return Hour(
            first_minute=span[0],
            second=second,
            counted={queue: [counts.get((queue, minute), {}) for minute in span] for queue in queues},
            gauges=[gauges[minute] for minute in span],
            complete=complete,
        )

    def by_type(self, queue: str, minutes: int = HOUR) -> Mapping[str, Counts]:
        """Return what happened in a queue in the last minutes by task type, the busiest type first."""
        last = int(self._server.call("TIME")[0]) // 60
        items = [(queue, minute) for minute in range(last - minutes + 1, last + 1)]
        found: dict[str, dict[str, int]] = {}
        for flat in self._scripts.run("read_minutes", by_type="1", items=items):
            for field, number in zip(flat[::2], flat[1::2], strict=True):
                task_type, _, what = field.decode().rpartition(":")
                counts = found.setdefault(task_type, {})
                counts[what] = counts.get(what, 0) + int(number)
        return dict(sorted(found.items(), key=lambda one: (-one[1].get("started", 0), one[0])))

    def _read_counts(self, queues: Sequence[str], span: range) -> tuple[dict[tuple[str, int], Counts], bool]:
        with self._lock:
            known = dict(self._counts)
        missing = [(queue, minute) for minute in reversed(span) for queue in queues if (queue, minute) not in known]
        asked = missing[: PAIRS_A_SCRIPT * MOST_SCRIPTS]
        fresh: dict[tuple[str, int], Counts] = {}
        for start in range(0, len(asked), PAIRS_A_SCRIPT):
            part = asked[start : start + PAIRS_A_SCRIPT]
            replies = self._scripts.run("read_minutes", by_type="0", items=part)
            for pair, flat in zip(part, replies, strict=True):
                names = (name.decode() for name in flat[::2])
                fresh[pair] = dict(zip(names, flat[1::2], strict=True))
        with self._lock:
            self._counts.update((pair, counts) for pair, counts in fresh.items() if pair[1] < span[-1])
            for pair in [pair for pair in self._counts if pair[1] <= span[-1] - HOUR]:
                del self._counts[pair]
        return known | fresh, len(asked) == len(missing)

    def _read_gauges(self, span: range) -> Mapping[int, Mapping[str, int] | None]:
        with self._lock:
            known = dict(self._gauges)
        missing = [minute for minute in span if minute not in known]
        fresh: dict[int, Mapping[str, int] | None] = {}
        for start in range(0, len(missing), GAUGES_A_SCRIPT):
            part = missing[start : start + GAUGES_A_SCRIPT]
            replies = self._scripts.run("read_gauges", items=[(minute,) for minute in part])
            fresh.update((minute, _gauges(flat)) for minute, flat in zip(part, replies, strict=True))
        with self._lock:
            self._gauges.update((minute, seen) for minute, seen in fresh.items() if minute < span[-1])
            for minute in [minute for minute in self._gauges if minute <= span[-1] - HOUR]:
                del self._gauges[minute]
        return known | fresh


def _gauges(flat: Sequence[bytes]) -> Mapping[str, int] | None:
    seen = {field.decode(): int(number) for field, number in zip(flat[::2], flat[1::2], strict=True)}
    return seen if seen.pop("looked", 0) else None
