"""What the engine is expected to hold, as plain Python: no Redis, no clock, no concurrency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dtq.model import Claim
from dtq.states import TERMINAL, Status

S = Status
MAX_DEPTH, MAX_SCHEDULED, MAX_QUEUES, MAX_CRASHES, DLQ_MAXLEN = 15, 6, 3, 2, 2
LIMITS = {
    "max_queue_depth": MAX_DEPTH,
    "max_scheduled": MAX_SCHEDULED,
    "max_queues": MAX_QUEUES,
    "max_crashes": MAX_CRASHES,
    "dlq_maxlen": DLQ_MAXLEN,
}


@dataclass
class Known:
    """A task as it must be."""

    task_id: str
    queue: str
    band: int
    scope: tuple[str, str] | None
    body: int
    has_ttl: bool
    status: Status
    place: int = 0
    """The order of its ticket among all that were ever made."""
    seq: int = 1
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    suspect: int = 0
    alone: bool | None = None
    worker: str | None = None
    cancel: bool = False
    passed: bool = False
    """Whether its ttl has run out."""
    requeued: int = 0
    history: int = 0
    discarded: bool = False

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL


@dataclass
class Model:
    """All of it, and what every event does to it."""

    tasks: dict[str, Known] = field(default_factory=dict)
    scopes: dict[tuple[str, str], str] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)
    queues: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)
    totals: dict[str, Counter[str]] = field(default_factory=dict)
    places: int = 0

    def having(self, *statuses: Status) -> list[Known]:
        return [task for task in self.tasks.values() if task.status in statuses]

    def waiting(self, queue: str) -> list[Known]:
        """Queued tasks in the order in which they must be claimed."""
        found = [task for task in self.having(S.QUEUED) if task.queue == queue]
        return sorted(found, key=lambda task: (-task.band, task.place))

    def count(self, task: Known, what: str) -> None:
        self.totals.setdefault(task.queue, Counter())[f"echo:{what}"] += 1

    def ticket(self, task: Known) -> None:
        self.places += 1
        task.place, task.status, task.worker, task.alone = self.places, S.QUEUED, None, None

    # --- submitting ---------------------------------------------------------------------------------------------------

    def refusal(self, queue: str, scope: tuple[str, str] | None, body: int, delayed: bool) -> str | None:
        """The code with which a submission must be refused, "REPLAY", or None."""
        holder = self.tasks[self.scopes[scope]] if scope in self.scopes and scope is not None else None
        if holder is not None:
            if holder.body != body:
                return "IDEMPOTENCY_KEY_REUSED"
            return "REPLAY" if holder.terminal else "IDEMPOTENCY_IN_PROGRESS"
        if queue not in self.queues and len(self.queues) >= MAX_QUEUES:
            return "TOO_MANY_QUEUES"
        if delayed:
            return "SCHEDULE_FULL" if len(self.having(S.PENDING)) >= MAX_SCHEDULED else None
        standing = [task for task in self.having(S.QUEUED, S.RUNNING) if task.queue == queue]
        return "QUEUE_FULL" if len(standing) >= MAX_DEPTH else None

    def accept(self, task: Known) -> None:
        self.tasks[task.task_id] = task
        self.queues.add(task.queue)
        if task.scope:
            self.scopes[task.scope] = task.task_id
        if task.status is S.QUEUED:
            self.ticket(task)
        self.count(task, "submitted")

    # --- claiming -----------------------------------------------------------------------------------------------------

    def claim(self, worker: str, queues: Sequence[str], limit: int) -> list[Known]:
        """Take what a claim must take, in order."""
        taken: list[Known] = []
        for queue in queues:
            if queue in self.paused:
                continue
            for task in self.waiting(queue):
                if len(taken) == limit:
                    return taken
                if task.passed:
                    self.end(task, S.EXPIRED)
                    continue
                if task.suspect and taken:
                    return taken
                task.status, task.worker, task.alone = S.RUNNING, worker, None
                task.seq += 1
                task.attempt += 1
                self.count(task, "started")
                taken.append(task)
                if task.suspect:
                    return taken
        return taken

    def owner_of(self, claim: Claim, worker: str) -> Known | None:
        """The task, if the claim is still good."""
        task = self.tasks.get(claim.task_id)
        good = task is not None and task.status is S.RUNNING and task.seq == claim.seq
        assert not good or (task is not None and task.worker == worker)
        return task if good else None

    # --- ends ---------------------------------------------------------------------------------------------------------

    def end(self, task: Known, status: Status) -> None:
        task.status = status
        self.count(task, status.value)

    def bury(self, task: Known) -> None:
        self.end(task, S.DEAD_LETTERED)
        self.dead.append(task.task_id)

    def evict(self, kept: list[str]) -> None:
        """Dead letters beyond the limit go, the oldest first. kept: those that are really there, in order."""
        assert len(kept) == min(len(self.dead), DLQ_MAXLEN)
        assert set(kept) <= set(self.dead)
        for task_id in [one for one in self.dead if one not in kept]:
            self.tasks[task_id].status = S.FAILED
            self.count(self.tasks[task_id], "evicted")
        self.dead = kept

    def hand_back(self, task: Known) -> None:
        if task.cancel:
            self.end(task, S.CANCELLED)
        else:
            task.status, task.worker, task.alone = S.QUEUED, None, None
            task.seq += 1
            task.attempt -= 1
            self.count(task, "handed_back")

    def lose(self, task: Known) -> None:
        """Its lease has ended."""
        if task.suspect == 0:
            task.suspect = 1
        elif task.alone is True:
            task.crashes += 1
        elif task.alone is False:
            task.suspect = 2
        task.seq += 1
        task.history += 1
        self.count(task, "attempt_lost")
        if task.cancel:
            self.end(task, S.CANCELLED)
        elif task.crashes >= MAX_CRASHES:
            self.bury(task)
        else:
            task.status, task.worker, task.alone = S.QUEUED, None, None
            self.count(task, "reclaimed")

    def finish(self, task: Known, kind: str) -> Status:
        """Apply an outcome and return the status that it leads to."""
        if task.cancel:
            task.history += 1
            self.count(task, "attempt_cancelled")
            self.end(task, S.CANCELLED)
        elif kind == "succeed":
            self.end(task, S.SUCCEEDED)
        elif kind == "retry":
            task.status, task.failures, task.history = S.RETRYING, task.failures + 1, task.history + 1
            self.count(task, "retried")
            self.count(task, "attempt_failed")
        elif kind in ("snooze", "unknown"):
            task.status, task.attempt = S.PENDING, task.attempt - 1
            self.count(task, "snoozed" if kind == "snooze" else "unknown")
        else:
            task.failures, task.history = task.failures + 1, task.history + 1
            self.count(task, "attempt_failed")
            self.bury(task)
            return S.DEAD_LETTERED
        return task.status

    # --- the rest -----------------------------------------------------------------------------------------------------

    def promote(self, tasks: Iterable[Known]) -> int:
        moved = 0
        for task in tasks:
            if task.passed:
                self.end(task, S.EXPIRED)
            else:
                task.seq += 1
                self.ticket(task)
                moved += 1
        return moved

    def expire_waiting(self) -> None:
        """The reconciler has come by."""
        for task in self.having(S.QUEUED):
            if task.passed:
                self.end(task, S.EXPIRED)

    def requeue(self, task: Known, queue: str, band: int) -> None:
        self.dead.remove(task.task_id)
        task.queue, task.band = queue, band
        task.seq += 1
        task.attempt = task.failures = task.crashes = task.suspect = 0
        task.cancel = task.passed = False
        task.requeued += 1
        task.history += 1
        self.queues.add(queue)
        self.ticket(task)
        if task.scope:
            self.scopes.setdefault(task.scope, task.task_id)
        self.count(task, "requeued")

    def discard(self, task: Known) -> None:
        self.dead.remove(task.task_id)
        task.status, task.discarded = S.FAILED, True
        self.count(task, "discarded")

    def forget(self, task: Known) -> None:
        """Its retention is over."""
        del self.tasks[task.task_id]
        if task.scope and self.scopes.get(task.scope) == task.task_id:
            del self.scopes[task.scope]
