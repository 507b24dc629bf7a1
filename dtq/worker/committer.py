"""Records outcomes: as many as there are in one script, and no wait for more when there is only one."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from dtq.errors import RedisFull, RedisUnavailable
from dtq.model import Outcome
from dtq.states import Disposition, Status
from dtq.worker.context import TaskContext
from dtq.worker.outcomes import OutcomeLog
from dtq.worker.service import Service
from dtq.worker.state import Job, WorkerState, ids

log = logging.getLogger(__name__)

MAX_BATCH = 64
IDLE_WAIT_S = 5.0
MAX_FAILED_KNOWN = 10_000


class Committer(Service):
    """Writes what runners pass on. An outcome is kept, and its lease renewed, until Redis took or refused it."""

    def __init__(self, state: WorkerState) -> None:
        super().__init__("committer", state.outage)
        self._state = state
        self._queue: SimpleQueue[Job | TaskContext | None] = SimpleQueue()
        self._kept: list[Job] = []
        """The batch in hand: what is here has been sent, or is about to be."""
        self._failed_tasks: set[str] = set()
        self._log = OutcomeLog()

    def put(self, item: Job | TaskContext) -> None:
        """Take a job with its outcome, or a context whose progress is to be written."""
        self._queue.put(item)

    @property
    def backlog(self) -> int:
        """Outcomes that are not recorded yet."""
        return len(self._kept) + self._queue.qsize()

    @property
    def failed_tasks(self) -> int:
        """Tasks whose last outcome here was a failure: what a burst is judged by."""
        return len(self._failed_tasks)

    def interrupt(self) -> None:
        """Cut the wait short."""
        self._queue.put(None)

    def step(self, timeout_s: float = IDLE_WAIT_S) -> bool:
        """Record one batch, after waiting for its first outcome. Raises RedisUnavailable: the batch is kept."""
        if not self._kept:
            self._collect(timeout_s)
            self._log.settle()
        if self._kept:
            self._commit()
        return True

    def finish(self) -> None:
        """Record what is left, if Redis is there."""
        while self.backlog:
            self._collect(0.0)
            if not self._kept:
                break
            try:
                self._commit()
            except (RedisUnavailable, RedisFull):
                log.warning("%d outcomes could not be recorded; their tasks will run again", self.backlog)
                break

    def _collect(self, timeout_s: float) -> None:
        queue, kept = self._queue, self._kept
        reports: dict[str, TaskContext] = {}
        try:
            item = queue.get(timeout=timeout_s) if timeout_s else queue.get_nowait()
            while True:
                if isinstance(item, Job):
                    kept.append(item)
                    if len(kept) >= MAX_BATCH:
                        break
                elif item is not None:
                    reports[item.task_id] = item
                item = queue.get_nowait()
        except Empty:
            pass
        for context in reports.values():
            self._report(context)

    def _report(self, context: TaskContext) -> None:
        latest = context.latest
        if latest is None:
            return
        try:
            self._state.broker.progress(self._state.worker_id, context.claim, *latest)
        except (RedisUnavailable, RedisFull):
            context.pending = True  # the ticker will send it again, while the task runs

    def _commit(self) -> None:
        outcomes = [job.outcome for job in self._kept if job.outcome is not None]
        try:
            answers = self._state.broker.commit(self._state.worker_id, outcomes)
        except (RedisUnavailable, RedisFull):
            raise
        except Exception:
            log.exception("a batch of outcomes was refused, each is tried by itself")
            answers = self._commit_singly(outcomes)
        self._state.outage.over()
        done, self._kept = self._kept, []
        remove = self._state.holdings.remove
        held = [remove(job) for job in done]
        if None in answers:  # of what is not held any more, it was said before that the claim is over
            self._note_refused(
                [job for job, answer, was in zip(done, answers, held, strict=True) if was and answer is None]
            )
        self._count(outcomes)
        timings, now = self._state.stats.timings, time.monotonic()
        for job, answer in zip(done, answers, strict=True):
            if answer is not None:
                timings.note(job, answer, now)
                self._log.tell(job, answer)

    def _commit_singly(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        """Keep one outcome that cannot be recorded from holding up the others: its task runs again after its lease."""
        answers: list[Status | None] = []
        for outcome in outcomes:
            try:
                answers += self._state.broker.commit(self._state.worker_id, [outcome])
            except (RedisUnavailable, RedisFull):
                raise
            except Exception:
                log.exception("an outcome could not be recorded", extra={"task_id": outcome.claim.task_id})
                answers.append(None)
        return answers

    def _note_refused(self, jobs: Sequence[Job]) -> None:
        if jobs:
            self._state.stats.stale += len(jobs)
            self._state.claims_over.add(len(jobs), ids(jobs[0]))

    def _count(self, outcomes: Sequence[Outcome]) -> None:
        stats = self._state.stats
        for outcome in outcomes:
            kind = outcome.kind
            if outcome.disposition is Disposition.TIMED_OUT:
                stats.timed_out += 1
            if kind == "succeed":
                stats.succeeded += 1
                if self._failed_tasks:
                    self._failed_tasks.discard(outcome.claim.task_id)
            elif kind == "retry":
                stats.retried += 1
            elif kind == "dead":
                stats.failed += 1
            elif kind == "cancelled":
                stats.cancelled += 1
            else:
                stats.snoozed += 1
            failed = kind in ("retry", "dead", "unknown")
            if failed and self._state.burst and len(self._failed_tasks) < MAX_FAILED_KNOWN:
                self._failed_tasks.add(outcome.claim.task_id)
