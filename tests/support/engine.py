"""The engine without its worker: a broker and queries over a server, a worker that does as it is told, seeded tasks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from dtq.broker import Broker, ClaimBatch, Replay
from dtq.bulk import BulkJobs
from dtq.charts import Charts
from dtq.control import Control
from dtq.errors import DtqError
from dtq.keys import Keys
from dtq.model import Actor, Claim, DeadReason, ErrorInfo, HandlerPolicy, Outcome, Task, WorkerInfo
from dtq.queries import Queries
from dtq.redisio import Server
from dtq.settings import Settings, load_settings
from dtq.states import Disposition, Status
from dtq.submission import Submission, SubmissionLimits, submission_from_object
from tests.support.dump import namespace_of

Kind = Literal["succeed", "retry", "dead", "snooze", "unknown", "cancelled"]

FAR_MS = 100 * 365 * 86_400_000
"""Later than everything: what is due in less counts as due."""

_DISPOSITIONS = {
    "succeed": Disposition.SUCCEEDED,
    "retry": Disposition.FAILED,
    "dead": Disposition.FAILED,
    "cancelled": Disposition.CANCELLED,
}


class Seeded(NamedTuple):
    """A task brought into a status, alone in its queue."""

    task_id: str
    queue: str
    claim: Claim | None
    """The last claim of it, which may be over."""


class Engine:
    """Broker and queries of one namespace, and short ways to do with them what a worker does."""

    def __init__(self, server: Server, **overrides: Any) -> None:
        """overrides: settings by field name."""
        self.server = server
        overrides.setdefault("namespace", namespace_of(server))
        self.settings: Settings = load_settings(env_file=None, redis_url="memory://", **overrides)
        self.broker = Broker(server, self.settings)
        self.control = Control(server, self.settings)
        self.bulk = BulkJobs(server, self.settings)
        self.queries = Queries(server, self.settings)
        self.charts = Charts(server, self.settings)
        self.keys: Keys = self.broker.keys
        self._numbers = itertools.count(1)
        self._limits = SubmissionLimits.from_settings(self.settings)

    # --- submitting ---------------------------------------------------------------------------------------------------

    def submission(self, **fields: Any) -> Submission:
        return submission_from_object({"task_type": "echo", **fields}, self._limits)

    def offer(self, *submissions: Submission) -> list[Task | Replay | DtqError]:
        return self.broker.submit(submissions)

    def try_submit(self, **fields: Any) -> Task | Replay | DtqError:
        """Submit one and return whatever the answer is."""
        return self.offer(self.submission(**fields))[0]

    def submit(self, **fields: Any) -> str:
        """Submit one that is accepted; return its id."""
        answer = self.try_submit(**fields)
        assert isinstance(answer, Task), answer
        return answer.task_id

    def submit_many(self, number: int, **fields: Any) -> list[str]:
        """Submit many alike that are accepted; return their ids in order."""
        answers = self.offer(*[self.submission(**fields)] * number)
        assert all(isinstance(answer, Task) for answer in answers), [a for a in answers if not isinstance(a, Task)][:3]
        return [answer.task_id for answer in answers if isinstance(answer, Task)]

    # --- being a worker -----------------------------------------------------------------------------------------------

    def worker(
        self, worker_id: str = "w1", *, lease_s: float = 30.0, queues: Sequence[str] = ("default",)
    ) -> WorkerInfo:
        return WorkerInfo(
            worker_id=worker_id, queues=tuple(queues), concurrency=4, lease_s=lease_s, started_at=0.0,
            heartbeat_at=0.0, state="running", running=0, held=0, task_types=(), abandoned_threads=0, host="host",
            pid=1, version="0",
        )  # fmt: skip

    def register(
        self,
        worker_id: str = "w1",
        *,
        lease_s: float = 30.0,
        queues: Sequence[str] = ("default",),
        handlers: Mapping[str, HandlerPolicy] | None = None,
    ) -> WorkerInfo:
        info = self.worker(worker_id, lease_s=lease_s, queues=queues)
        self.broker.register(info, handlers or {})
        return info

    def claim_batch(self, worker_id: str = "w1", limit: int = 100, queues: Sequence[str] = ("default",)) -> ClaimBatch:
        return self.broker.claim(worker_id, queues, limit)

    def claim(self, worker_id: str = "w1", limit: int = 100, queues: Sequence[str] = ("default",)) -> list[Claim]:
        return self.claim_batch(worker_id, limit, queues).claims

    def claim_one(self, worker_id: str = "w1", queue: str = "default") -> Claim:
        (claim,) = self.claim(worker_id, 1, [queue])
        return claim

    def commit(self, claim: Claim, kind: Kind = "succeed", *, worker_id: str = "w1", **fields: Any) -> Status | None:
        """Record one outcome."""
        return self.broker.commit(worker_id, [outcome(claim, kind, **fields)])[0]

    def fail_for_good(self, worker_id: str = "w1", queue: str = "default", reason: DeadReason = "permanent") -> str:
        """Submit a task, claim it and record that it failed for good; return its id."""
        self.submit(queue=queue)
        claim = self.claim_one(worker_id, queue)
        assert self.commit(claim, "dead", worker_id=worker_id, reason=reason) is not None
        return claim.task_id

    # --- being an operator --------------------------------------------------------------------------------------------

    def cancel(self, task_id: str, reason: str = "") -> Status:
        return self.control.cancel(task_id, Actor("somebody", reason))

    def requeue(self, task_id: str, by: str = "somebody", **place: Any) -> None:
        self.control.requeue(task_id, Actor(by), **place)

    def discard(self, task_id: str, by: str = "somebody") -> None:
        self.control.discard(task_id, Actor(by))

    def bury(self, number: int, queue: str = "default", worker_id: str = "w1", **fields: Any) -> list[str]:
        """Make dead letters, at most as many as a queue may hold; return the ids of their tasks, oldest first.

        fields: of the outcome, such as reason and error.
        """
        ids = []
        self.submit_many(number, queue=queue)
        while claims := self.claim(worker_id, 100, [queue]):
            self.broker.commit(worker_id, [outcome(claim, "dead", **fields) for claim in claims])
            ids += [claim.task_id for claim in claims]
        return ids

    def pause(self, queue: str, by: str = "somebody", reason: str = "") -> bool:
        return self.control.pause(queue, Actor(by, reason))

    def resume(self, queue: str, by: str = "somebody") -> bool:
        return self.control.resume(queue, Actor(by))

    # --- time ---------------------------------------------------------------------------------------------------------

    def end_leases(self, *worker_ids: str) -> None:
        """Let every lease that is held now have ended: workers publish a lease of 1 ms, and 3 ms go by."""
        for name in worker_ids or [name.decode() for name in self.server.call("ZRANGE", self.keys.leases(), 0, -1)]:
            self.register(name, lease_s=0.001)
        time.sleep(0.003)

    def reclaim(self, *worker_ids: str) -> int:
        """Let the leases end and take back what was under them."""
        self.end_leases(*worker_ids or ["w1"])
        return self.take_back()

    def take_back(self, **options: int) -> int:
        """Reclaim, as a process does that has known Redis for a while."""
        taken = self.broker.upkeep.reclaim(**options)
        if taken == 0:  # at the first look, nothing is known of the past of a server in its first second
            time.sleep(0.003)
            taken = self.broker.upkeep.reclaim(**options)
        return taken

    def promote(self) -> int:
        """Move everything that is scheduled, as if its time had come."""
        moved = 0
        while (step := self.broker.upkeep.promote(late_ms=-FAR_MS).moved) > 0:
            moved += step
        return moved

    def let_ttl_pass(self, task_id: str) -> None:
        """Let the task's time have run out, as its record tells it."""
        self.server.call("HSET", self.keys.task(task_id), "expires", 1)

    def reconcile_all(self) -> int:
        """Run whole rounds of the reconciler; return how many tasks were put back."""
        repaired = rounds = 0
        while rounds < 2:
            step = self.broker.upkeep.reconcile()
            repaired += step.repaired
            rounds += step.finished_round
        return repaired

    # --- looking ------------------------------------------------------------------------------------------------------

    def task(self, task_id: str) -> Task:
        return self.queries.task(task_id)

    def field(self, task_id: str, name: str) -> str | None:
        """A field of the record itself."""
        found = self.server.call("HGET", self.keys.task(task_id), name)
        return None if found is None else found.decode()

    def totals(self, queue: str = "default") -> dict[str, int]:
        """The counters of a queue, by `type:what`."""
        flat = self.server.call("HGETALL", self.keys.totals(queue))
        return {name.decode(): int(number) for name, number in zip(flat[::2], flat[1::2], strict=True)}

    def events(self) -> list[list[str]]:
        """All events that the stream holds, oldest first: kind, task, queue, type, attempt, worker, detail."""
        entries = self.server.call("XRANGE", self.keys.events(), "-", "+")
        return [line.split("\t") for _, fields in entries for line in fields[1].decode().split("\n")]

    def kinds(self, task_id: str) -> list[str]:
        """The kinds of the events of one task."""
        return [event[0] for event in self.events() if event[1] == task_id]

    def pending(self, queue: str = "default", band: int = 5) -> list[tuple[str, str]]:
        """What a band's group has given out and not got back: (entry, consumer)."""
        rows = self.server.call("XPENDING", self.keys.stream(queue, band), "workers", "-", "+", 100_000)
        return [(row[0].decode(), row[1].decode()) for row in rows]

    def depth(self, queue: str = "default") -> int:
        return sum(self.server.pipeline([("XLEN", self.keys.stream(queue, band)) for band in range(10)]))

    # --- seeding ------------------------------------------------------------------------------------------------------

    def seed(self, status: Status, queue: str = "", **fields: Any) -> Seeded:
        """Bring a new task into a status by the broker's own methods, alone in a queue (a new one by default)."""
        queue = queue or f"q{next(self._numbers)}"
        if status is Status.PENDING:
            return Seeded(self.submit(queue=queue, delay_seconds=3600, **fields), queue, None)
        if status is Status.EXPIRED:
            fields["metadata"] = {"ttl_seconds": 0.001, **fields.get("metadata", {})}
            task_id = self.submit(queue=queue, **fields)
            time.sleep(0.003)
            assert self.claim("w1", 1, [queue]) == []
            return Seeded(task_id, queue, None)
        task_id = self.submit(queue=queue, **fields)
        if status is Status.QUEUED:
            return Seeded(task_id, queue, None)
        if status is Status.CANCELLED:
            self.cancel(task_id)
            return Seeded(task_id, queue, None)
        claim = self.claim_one("w1", queue)
        if status is Status.SUCCEEDED:
            self.commit(claim)
        elif status is Status.RETRYING:
            self.commit(claim, "retry", delay_ms=3_600_000)
        elif status is Status.DEAD_LETTERED:
            self.commit(claim, "dead", reason="exhausted")
        elif status is Status.FAILED:
            unkept = Engine(self.server, dlq_enabled=False, namespace=self.settings.namespace)
            unkept.commit(claim, "dead", reason="exhausted")
        return Seeded(task_id, queue, claim)


def outcome(claim: Claim, kind: Kind = "succeed", **fields: Any) -> Outcome:
    """An outcome as a worker reports it."""
    values: dict[str, Any] = {"duration_ms": 7, "disposition": _DISPOSITIONS.get(kind, Disposition.FAILED)}
    if kind in ("retry", "dead", "unknown"):
        values["error"] = ErrorInfo("ValueError", "it did not work", "Traceback ...")
    if kind == "dead":
        values["reason"] = "permanent"
    if kind == "unknown":
        values["reason"] = "unknown_task_type"
    return Outcome(claim=claim, kind=kind, **values | fields)
