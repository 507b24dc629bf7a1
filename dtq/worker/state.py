"""What the actors of one worker share: the tasks in its hands, what is known of task types, and its mode."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dtq.model import Claim, Outcome
from dtq.outage import Outage
from dtq.registry import Registry
from dtq.settings import Settings
from dtq.worker.context import TaskContext
from dtq.worker.said import Summary
from dtq.worker.stats import Stats

if TYPE_CHECKING:
    from dtq.broker import Broker

log = logging.getLogger(__name__)

Mode = Literal["running", "quiet", "draining"]


class Job:
    """A claim on its way through this worker: from the fetcher through a runner to the committer."""

    __slots__ = (
        "cancelled", "claim", "claimed_at", "context", "leased_at", "lost", "outcome", "ran_s", "released", "started_at"
    )  # fmt: skip

    def __init__(self, claim: Claim, claimed_at: float) -> None:
        self.claim = claim
        self.claimed_at = claimed_at
        """Monotonic."""
        self.leased_at = claimed_at
        """When the claim or its last renewal was asked for, monotonic: a whole lease is certain from then on."""
        self.started_at = 0.0
        """Monotonic; 0 before the start."""
        self.ran_s = 0.0
        """How long the handler ran, where it ended in this process; else the outcome tells it in milliseconds."""
        self.context: TaskContext | None = None
        """While the handler runs, and afterwards."""
        self.outcome: Outcome | None = None
        """Set once, before the job goes to the committer."""
        self.lost = False
        """The claim is over: write nothing."""
        self.released = False
        """The worker shuts down: what the handler does after its interruption does not count."""
        self.cancelled = False
        """Somebody asked for the task's cancellation."""

    def stop(self, *, lost: bool = False) -> None:
        """Let the handler see that its task is cancelled; or, lost, that nobody wants its result any more."""
        self.lost = self.lost or lost
        self.cancelled = True
        if self.context is not None:
            self.context.cancelled = True


class Holdings:
    """The jobs that this worker holds, by task id, from the claim until Redis has recorded what became of them.

    Used by several threads without a lock: each method is one operation on the dict, or works on a copy.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Take a job into the books."""
        self._jobs[job.claim.task_id] = job

    def get(self, task_id: str) -> Job | None:
        """Return the job of a task, or None when it is not held."""
        return self._jobs.get(task_id)

    def holds(self, job: Job) -> bool:
        """Whether this very job is held: its task may have been claimed anew meanwhile."""
        return self._jobs.get(job.claim.task_id) is job

    def remove(self, job: Job) -> bool:
        """Strike a job out, unless its task is held under a newer claim. Returns whether this very call did it."""
        if self._jobs.get(job.claim.task_id) is not job:
            return False
        return self._jobs.pop(job.claim.task_id, None) is not None

    def ids(self) -> Sequence[str]:
        """Return the ids of all held tasks."""
        return list(self._jobs)

    def jobs(self) -> list[Job]:
        """Return all held jobs, the longest held first."""
        return list(self._jobs.values())

    def held_since(self, moment: float) -> list[Job]:
        """Return the jobs claimed before `moment` (monotonic)."""
        return [job for job in self.jobs() if job.claimed_at <= moment]


@dataclass(slots=True, kw_only=True)
class WorkerState:
    """One worker: what it is called, what it serves, what it holds, and whether it takes more."""

    worker_id: str
    settings: Settings
    registry: Registry
    broker: Broker
    queues: Sequence[str]
    concurrency: int
    max_tasks: int | None = None
    """Take no more than this many tasks, then end; None: no limit."""
    burst: bool = False
    """End when there is nothing left to do."""
    holdings: Holdings = field(default_factory=Holdings)
    outage: Outage = field(default_factory=Outage)
    stats: Stats = field(default_factory=Stats)
    started_at: float = field(default_factory=time.time)
    claims_over: Summary = field(
        default_factory=lambda: Summary(log, "claims are over, others may have their tasks; nothing was written: %d")
    )
    """The ticker flushes it."""
    returning: int = 0
    """Jobs that are out of the books and not back in Redis yet: this worker has not done with them."""
    quiet: bool = False
    draining: bool = False
    exhausted: bool = False
    """Nothing more will be claimed: a burst found its queues empty."""

    @property
    def taken(self) -> int:
        """Tasks that were claimed and not given back."""
        return self.stats.claimed - self.stats.handed_back

    @property
    def lease_s(self) -> float:
        """The lease that this worker works under, seconds."""
        return self.settings.visibility_timeout_s

    def lease_may_be_over(self, job: Job) -> bool:
        """Whether another worker may have the task by now: this process stood still, or Redis's answers took long."""
        return time.monotonic() - job.leased_at > self.lease_s

    def leave_to_others(self, job: Job) -> None:
        """Strike out a job whose claim is over, or may be: nothing is written."""
        if self.holdings.remove(job):
            self.stats.stale += 1
            self.claims_over.add(1, ids(job))

    @property
    def mode(self) -> Mode:
        """The state that the heartbeat tells."""
        if self.draining:
            return "draining"
        return "quiet" if self.quiet else "running"

    @property
    def accepting(self) -> bool:
        """Whether new tasks may be claimed."""
        return not (self.quiet or self.draining or self.exhausted)


def ids(job: Job, outcome: Outcome | None = None) -> dict[str, object]:
    """Return what log records about a job carry."""
    claim = job.claim
    fields: dict[str, object] = {
        "task_id": claim.task_id,
        "task_type": claim.task_type,
        "queue": claim.queue,
        "attempt": claim.attempt,
    }
    belongs_to = None if job.context is None else job.context.trace
    if belongs_to is not None:
        fields["trace_id"] = belongs_to.trace_id
    if outcome is not None:
        fields["outcome"] = outcome.kind
        fields["duration_ms"] = outcome.duration_ms
        if outcome.error is not None:
            fields["error"] = f"{outcome.error.error_class}: {outcome.error.message}"
    return fields
