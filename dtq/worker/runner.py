"""Runs handlers: one thread a slot, fed by one queue."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from dtq import trace, tracing
from dtq.model import Claim, Outcome
from dtq.registry import Handler
from dtq.worker import verdict
from dtq.worker.context import TaskContext, set_current_context
from dtq.worker.state import Job, WorkerState, ids
from dtq.worker.timeouts import Guard
from dtq.worker.verdict import Rules

if TYPE_CHECKING:
    from dtq.worker.isolation import IsolatedProcess

log = logging.getLogger(__name__)

IDLE_WAIT_S = 10.0
_decode = json.JSONDecoder().decode
"""Without looking for other encodings, as `json.loads` does with bytes: a third of its time."""


class RoomBell:
    """How runners tell the fetcher that there is room again: only when it waits, and only when it is worth it."""

    __slots__ = ("_event", "level", "waiting")

    def __init__(self) -> None:
        self._event = threading.Event()
        self.waiting = False
        self.level = 0
        """The number of jobs not yet started at which the fetcher wants to know."""

    def ring(self) -> None:
        """Wake the fetcher."""
        self.waiting = False
        self._event.set()

    def prepare(self, level: int) -> None:
        """Announce a wait; look once more for room afterwards, then `wait`."""
        self._event.clear()
        self.level = level
        self.waiting = True

    def wait(self, timeout_s: float) -> bool:
        """Wait for a ring. Returns whether there was one."""
        rung = self._event.wait(timeout_s)
        self.waiting = False
        return rung


class Runner:
    """One slot: takes a job, runs its handler, passes the outcome on."""

    def __init__(
        self,
        number: int,
        state: WorkerState,
        inbox: SimpleQueue[Job | None],
        done: Callable[[Job | TaskContext], None],
        watch: Callable[[float], None],
        room: RoomBell,
    ) -> None:
        """inbox: None in it ends one runner. done: takes finished jobs, and contexts with progress to be written."""
        settings = state.settings
        self.number = number
        self.job: Job | None = None
        """What is in hand now."""
        self.finished = 0
        """How many jobs this runner has taken off the inbox and is through with. Written by its thread only."""
        self.guard = Guard(settings.timeout_grace_s, watch)
        self._state = state
        self._inbox = inbox
        self._done = done
        self._room = room
        self._durations = state.stats.durations
        self._handlers = state.registry.handlers
        self._default_timeout_s = settings.task_timeout_ms / 1000
        self._rules = Rules(
            backoff=settings.backoff, max_attempts=settings.max_attempts, result_max_bytes=settings.result_max_bytes
        )
        self._isolated: IsolatedProcess | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"runner-{number}", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def died(self) -> bool:
        """Whether the thread ended although nobody ended it."""
        return self._thread.ident is not None and not self._thread.is_alive() and not self._ended

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread. Returns whether it has ended, or never started."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def step(self, timeout_s: float = IDLE_WAIT_S) -> bool:
        """Run one job, if one comes within `timeout_s`. Returns whether one came."""
        try:
            job = self._inbox.get(timeout=timeout_s)
        except Empty:
            return False
        if job is None:
            self._ended = True
            return False
        self.job = job  # before any look at its flags: who sets one later finds it here
        try:
            self._handle(job)
        except BaseException as error:
            log.exception("a runner met an error outside of a handler", extra=ids(job))
            self._record_defect(job, error)
        finally:
            if self.guard.abandoned:
                self._ended = True  # whoever gave it up has counted the job and replaced this runner
            else:
                self.finished += 1
                self.job = None
                room = self._room
                if room.waiting and self._inbox.qsize() <= room.level:
                    room.ring()
        return True

    def _run(self) -> None:
        while not self._ended:
            self.step()
        if self._isolated is not None:
            self._isolated.close()

    def _handle(self, job: Job) -> None:
        claim = job.claim
        if job.released:  # the shutdown hands it back
            return
        if job.lost:
            self._state.holdings.remove(job)
            return
        if self._state.lease_may_be_over(job):
            self._state.leave_to_others(job)
            return
        if job.cancelled:
            self._finish(job, verdict.cancelled(claim, 0, "the task was cancelled before it started"))
            return
        handler = self._handlers.get(claim.task_type)
        if handler is None:
            self._finish(job, verdict.unknown(claim))
            return
        try:
            payload = _decode(claim.payload.decode())
            if payload.__class__ is not dict:
                raise TypeError(f"it is a JSON {type(payload).__name__} and not an object")
        except (ValueError, TypeError, RecursionError) as error:
            self._finish(job, verdict.undecodable(claim, handler, error, self._rules))
            return
        outcome = self._call(job, handler, payload)
        if outcome is not None:
            self._finish(job, outcome)

    def _call(self, job: Job, handler: Handler, payload: Any) -> Outcome | None:
        """Run the handler. Returns None when nothing is to be recorded: the claim is over, or the job given back."""
        claim = job.claim
        started = time.monotonic()
        limit_s = self._time_limit_s(claim, handler)
        context = TaskContext(claim, self._state.worker_id, started + limit_s, self._done)
        context.cancelled = job.cancelled
        job.context = context
        job.started_at = started
        span = tracing.begin_run(claim, context.trace)
        belongs_to = context.trace if span is None else span.context
        if belongs_to is None:
            return self._call_either(job, handler, payload, limit_s)
        outcome: Outcome | None = None
        try:
            with trace.carrying(belongs_to):
                outcome = self._call_either(job, handler, payload, limit_s)
        finally:
            if span is not None:
                span.end(outcome)
        return outcome

    def _call_either(self, job: Job, handler: Handler, payload: Any, limit_s: float) -> Outcome | None:
        if handler.isolation == "process":
            return self._call_isolated(job, handler, limit_s)
        return self._call_here(job, handler, payload)

    def _call_here(self, job: Job, handler: Handler, payload: Any) -> Outcome | None:
        claim, guard, started, context = job.claim, self.guard, job.started_at, job.context
        assert context is not None
        set_current_context(context)
        ok = guard.call(job, handler.fn, (payload, context), context.deadline)
        set_current_context(None)
        if guard.abandoned:
            log.warning("a handler returned after its thread was written off; nothing is recorded", extra=ids(job))
            return None
        seconds = job.ran_s = time.monotonic() - started
        if job.lost:
            log.debug("a handler ended after its claim was over; its result is dropped", extra=ids(job))
            self._state.holdings.remove(job)
            guard.clear()
            return None
        duration_ms = int(seconds * 1000)
        try:
            if ok:
                self._durations.note(claim.task_type, seconds)
                return verdict.returned(claim, handler, guard.value, duration_ms, self._rules)
            return self._judge(job, handler, duration_ms)
        finally:
            guard.clear()

    def _call_isolated(self, job: Job, handler: Handler, limit_s: float) -> Outcome | None:
        if self._isolated is None:
            from dtq.worker.isolation import IsolatedProcess  # a worker imports only what it runs

            self._isolated = IsolatedProcess(self._state, self._rules)
        outcome = self._isolated.run(job, handler, limit_s)
        if job.lost:
            self._state.holdings.remove(job)
            return None
        if outcome is not None:
            self._durations.note(job.claim.task_type, outcome.duration_ms / 1000)
        return outcome

    def _judge(self, job: Job, handler: Handler, duration_ms: int) -> Outcome | None:
        guard = self.guard
        error = guard.error
        if error is None:  # cannot be: a call that did not return has raised
            error = RuntimeError("the handler neither returned nor raised")
        if job.released:  # interrupted by the shutdown: given back, never failed
            return None
        outcome = verdict.raised(job.claim, handler, error, duration_ms, self._rules, timed_out=guard.timed_out)
        self._durations.note(job.claim.task_type, duration_ms / 1000)
        return outcome

    def _record_defect(self, job: Job, error: BaseException) -> None:
        """Let no task stay in the worker's hands because something went wrong around its handler."""
        if job.outcome is None and not self.guard.abandoned:
            handler = self._handlers.get(job.claim.task_type)
            job.outcome = verdict.dead(job.claim, handler, verdict.describe(error), 0, self._rules)
            self._done(job)

    def _finish(self, job: Job, outcome: Outcome) -> None:
        context = job.context
        if context is not None and context.pending:
            context.send_progress(time.monotonic())  # before the outcome, after which no progress is written
        job.outcome = outcome
        self._done(job)

    def _time_limit_s(self, claim: Claim, handler: Handler) -> float:
        if claim.timeout_ms is not None:
            return claim.timeout_ms / 1000
        return self._default_timeout_s if handler.timeout_ms is None else handler.timeout_ms / 1000
