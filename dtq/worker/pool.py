"""The runners of a worker as one: their inbox, how much room there is, and the replacement of written-off threads."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from dtq.model import ErrorInfo, Outcome
from dtq.states import Disposition
from dtq.worker import verdict
from dtq.worker.context import TaskContext
from dtq.worker.runner import RoomBell, Runner
from dtq.worker.state import Job, WorkerState, ids
from dtq.worker.timeouts import Guard, Watchdog
from dtq.worker.verdict import Rules

log = logging.getLogger(__name__)


class Pool:
    """`concurrency` runners around one inbox.

    Numbers are kept without locks: the fetcher alone puts jobs in, each runner counts what it is through with.
    """

    def __init__(self, state: WorkerState, done: Callable[[Job | TaskContext], None]) -> None:
        """done: takes finished jobs, and contexts whose progress is to be written."""
        self.room = RoomBell()
        self.watchdog = Watchdog(self._guards, self.give_up)
        self._state = state
        self._done = done
        self._inbox: SimpleQueue[Job | None] = SimpleQueue()
        self._accepted = 0
        self._taken_back = 0
        self._retired = 0
        """Jobs that written-off runners were through with, and what they hung on."""
        self._batches: deque[tuple[float, int]] = deque()
        """When jobs were put in, and the number (counted from 1) of the last of them."""
        self._written_off: list[Runner] = []
        self._made = 0
        self._runners = [self._new_runner() for _ in range(state.concurrency)]

    # --- the fetcher's side -------------------------------------------------------------------------------------------

    def put(self, jobs: Sequence[Job]) -> None:
        """Hand jobs to the runners. Called by the fetcher only."""
        self._accepted += len(jobs)
        self._batches.append((jobs[0].claimed_at, self._accepted))
        for job in jobs:
            self._inbox.put(job)

    @property
    def waiting(self) -> int:
        """Jobs that no runner has taken yet."""
        return self._inbox.qsize()

    @property
    def outstanding(self) -> int:
        """Jobs that wait or run."""
        return self._accepted - self._taken_back - self._retired - sum(runner.finished for runner in self._runners)

    @property
    def finished(self) -> int:
        """Jobs that the runners are through with, ever."""
        return self._retired + sum(runner.finished for runner in self._runners)

    def oldest_waiting_since(self) -> float | None:
        """Return when the first job that waits was claimed (monotonic), or None. Called by the fetcher only."""
        waiting = self._inbox.qsize()
        if not waiting:
            self._batches.clear()
            return None
        first = self._accepted - waiting + 1
        while self._batches and self._batches[0][1] < first:
            self._batches.popleft()
        return self._batches[0][0] if self._batches else None

    def take_back(self, claimed_before: float) -> list[Job]:
        """Take jobs out again that were claimed before a moment (monotonic) and have not started."""
        jobs: list[Job] = []
        while (since := self.oldest_waiting_since()) is not None and since <= claimed_before:
            try:
                job = self._inbox.get_nowait()
            except Empty:
                break
            if job is None:  # the end of a runner is not ours to take
                self._inbox.put(None)
                break
            jobs.append(job)
        self._taken_back += len(jobs)
        return jobs

    # --- what runs ----------------------------------------------------------------------------------------------------

    def running(self) -> list[Job]:
        """Return the jobs whose handlers run now."""
        return [job for runner in self._runners if (job := runner.job) is not None and job.started_at]

    def has_in_hand(self, task_id: str) -> bool:
        """Whether a runner runs a task, or is about to, under whatever claim; written-off ones not counted."""
        return any((job := runner.job) is not None and job.claim.task_id == task_id for runner in self._runners)

    def stop_handler(self, job: Job, *, lost: bool = False) -> None:
        """Let the handler of a job know that it is cancelled, or that its claim is over, and interrupt it."""
        job.stop(lost=lost)
        for runner in self._runners:
            if runner.job is job:
                if lost:
                    runner.guard.cancel(job, courtesy_s=0.0)
                else:
                    runner.guard.cancel(job)

    def release(self, patience_s: float) -> None:
        """End all handlers for a shutdown: interrupt them, give up those that do not end in `patience_s` seconds.

        What is unfinished stays among the holdings without an outcome; what succeeds meanwhile goes its usual way.
        """
        in_hand = [(runner, job) for runner in self._runners if (job := runner.job) is not None]
        for runner, job in in_hand:
            job.released = True
            job.stop()
            runner.guard.cancel(job, courtesy_s=0.0)
        deadline = time.monotonic() + patience_s
        while any(runner.job is job for runner, job in in_hand) and time.monotonic() < deadline:
            time.sleep(0.01)
        for runner in list(self._runners):
            job_left = runner.job
            if job_left is not None and runner.guard.abandon(job_left):
                self._written_off.append(runner)
        deadline = time.monotonic() + 0.2  # an end that was being recorded just now
        while any(r.job is not None and not r.guard.abandoned for r in self._runners) and time.monotonic() < deadline:
            time.sleep(0.005)

    def give_up(self, guard: Guard) -> None:
        """Write a thread off whose handler did not return after its time limit: record the attempt, fill the slot."""
        runner = next((runner for runner in self._runners if runner.guard is guard), None)
        if runner is None:
            return
        job = runner.job
        self._retired += runner.finished + 1
        self._runners[self._runners.index(runner)] = replacement = self._new_runner()
        self._written_off.append(runner)
        self._state.stats.written_off += 1
        replacement.start()
        if job is None:
            return
        log.error("a handler did not return after its time limit; its thread is written off", extra=ids(job))
        if job.lost:
            self._state.holdings.remove(job)
        elif not job.released:
            job.outcome = self._timed_out(job)
            self._done(job)
        if self.room.waiting:
            self.room.ring()

    @property
    def abandoned(self) -> int:
        """Written-off threads that still hang."""
        self._written_off = [runner for runner in self._written_off if runner.alive]
        return len(self._written_off)

    @property
    def threads(self) -> int:
        """Runners that are alive, written-off ones not counted."""
        return sum(runner.alive for runner in self._runners)

    # --- threads ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads."""
        self.watchdog.start()
        for runner in self._runners:
            runner.start()

    def stop(self) -> None:
        """Let each runner end after what is in the inbox."""
        for _ in self._runners:
            self._inbox.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the runners. Returns whether all have ended, written-off ones not counted."""
        deadline = time.monotonic() + timeout_s
        ended = all(
            runner.guard.abandoned or runner.join(max(0.0, deadline - time.monotonic())) for runner in self._runners
        )
        self.watchdog.stop()
        return self.watchdog.join(max(0.1, deadline - time.monotonic())) and ended

    def step(self) -> bool:
        """Run one waiting job in the calling thread, for tests. Returns whether there was one."""
        return self._runners[0].step(timeout_s=0)

    def revive(self) -> int:
        """Replace runners whose threads have died. Returns how many."""
        dead = [runner for runner in self._runners if runner.died]
        for runner in dead:
            self._retired += runner.finished
            job = runner.job
            if job is not None:  # nobody knows how far it came: its lease ends, and it runs again
                self._retired += 1
                self._state.holdings.remove(job)
            self._runners[self._runners.index(runner)] = replacement = self._new_runner()
            replacement.start()
        return len(dead)

    def _guards(self) -> list[Guard]:
        return [runner.guard for runner in self._runners]

    def _new_runner(self) -> Runner:
        self._made += 1
        return Runner(self._made, self._state, self._inbox, self._done, self.watchdog.watch, self.room)

    def _timed_out(self, job: Job) -> Outcome:
        settings = self._state.settings
        handler = self._state.registry.get(job.claim.task_type)
        rules = Rules(
            backoff=settings.backoff, max_attempts=settings.max_attempts, result_max_bytes=settings.result_max_bytes
        )
        info = ErrorInfo(
            "TaskTimeout",
            f"the handler did not return within {settings.timeout_grace_s:g} s after its time limit; "
            "its thread was written off and may still run",
        )
        duration_ms = int((time.monotonic() - job.started_at) * 1000)
        return verdict.retry_or_dead(job.claim, handler, info, duration_ms, rules, disposition=Disposition.TIMED_OUT)
