"""Puts the actors of one worker together, watches over them, and takes them apart in order."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from dtq.errors import DtqError, RedisUnavailable
from dtq.serverinfo import with_advice
from dtq.worker.committer import Committer
from dtq.worker.fetcher import Fetcher
from dtq.worker.handback import SHUTDOWN_PATIENCE_S, give_back
from dtq.worker.pool import Pool
from dtq.worker.scheduler import Scheduler
from dtq.worker.service import Service
from dtq.worker.state import WorkerState
from dtq.worker.ticker import Ticker

if TYPE_CHECKING:
    from dtq.streams import Doorbell, LeaderBell

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 0.1
STUCK_S = 20.0
"""A service that has not finished a step for so long is stuck: its steps wait for a few seconds at most."""
STUCK_DRAIN_S = 5.0
MAX_REVIVALS = 5
"""A service whose thread died more often than this is not started again: the process ends."""
START_PATIENCE_S = 10.0
"""How long a worker that starts waits for a Redis that does not answer; for one that is loading it waits on."""
START_REDIS_INTERVAL_S = 2.0
RELEASE_PATIENCE_S = 0.5
"""How long an interrupted handler gets to end, when its task is about to be handed back."""
COMMIT_PATIENCE_S = 5.0
"""How long at least outcomes are tried to be recorded after the drain; what is left of the drain is used for it too."""
AFTER_DRAIN_S = 4.0
"""How long all that follows the drain may take together: whoever stops containers allows 5 s more than we drain."""
LEAVE_S = 1.8
"""The same after a second signal."""
SWITCH_INTERVAL_S = 0.0005
"""With busy handlers a thread that comes back from the network waits for this long, not for ten times as much."""


class ExitCode(IntEnum):
    """How a worker process ends."""

    CLEAN = 0
    HANDED_BACK = 1
    REDIS_AWAY = 69
    CRASHED = 70
    TOO_MANY_ABANDONED = 71
    BURST_WITH_FAILURES = 75
    CONFIGURATION = 78


@dataclass(slots=True)
class Requests:
    """What signals, operators and the watch over the actors ask of the supervisor. They only set these."""

    stop: bool = False
    """Drain and end."""
    leave: bool = False
    """Do not drain: hand back and end now."""
    code: ExitCode = ExitCode.CLEAN
    """How to end, unless something worse comes."""
    drain_s: float | None = None
    """Instead of DTQ_DRAIN_TIMEOUT_S."""
    stacks: bool = False
    """Write the stacks of all threads to stderr."""


class _TimeLeft:
    """How long a shutdown may still take: a second signal cuts it short at any point."""

    def __init__(self, requests: Requests, drain_s: float) -> None:
        self._requests = requests
        self._drain_ends_at = time.monotonic() + drain_s
        self._ends_at = self._drain_ends_at + AFTER_DRAIN_S
        self._left = False

    def to_drain(self) -> float:
        """Return the seconds left for running handlers, 0 after a second signal."""
        return 0.0 if self._requests.leave else max(0.0, self._drain_ends_at - time.monotonic())

    def altogether(self) -> float:
        """Return the seconds left for everything."""
        if self._requests.leave and not self._left:
            self._left = True
            self._ends_at = min(self._ends_at, time.monotonic() + LEAVE_S)
        return max(0.0, self._ends_at - time.monotonic())


class Supervisor:
    """One worker in this process. `run` returns its exit code."""

    def __init__(
        self,
        state: WorkerState,
        doorbell: Doorbell,
        leader_bell: LeaderBell,
        start_redis: Callable[[], object] | None = None,
    ) -> None:
        """start_redis: starts the embedded server again if it is gone; None for a server that others look after."""
        self.state = state
        self.requests = Requests()
        self.committer = Committer(state)
        self.pool = Pool(state, self.committer.put)
        self.scheduler = Scheduler(state, leader_bell)
        self.ticker = Ticker(state, self.pool, self.scheduler, self.stop)
        self.fetcher = Fetcher(state, self.pool, doorbell, lambda: self.committer.backlog)
        self._services: Sequence[Service] = (
            self.pool.watchdog,
            self.committer,
            self.ticker,
            self.scheduler,
            self.fetcher,
        )
        self.at_start: Callable[[], None] = lambda: None
        """Called once, when Redis knows this worker."""
        self.at_each_check: Callable[[], None] = lambda: None
        """Called ten times a second while the worker works."""
        self.name_taken: Callable[[], str | None] = lambda: None
        """Says who lives under this worker's name, before it is made known; may raise RedisUnavailable."""
        self._start_redis = start_redis
        self._start_redis_at = 0.0
        self._parent = os.getppid()
        self._revivals = 0
        self._beats: dict[str, tuple[int, int]] = {}

    # --- asked from outside -------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask for a drain; asked again, for an end without draining. Only sets flags: fit for a signal handler."""
        if self.requests.stop:
            self.requests.leave = True
        self.requests.stop = True

    def be_quiet(self) -> None:
        """Claim nothing more, go on with what is held, stay."""
        self.state.quiet = True

    def show_stacks(self) -> None:
        """Ask for the stacks of all threads."""
        self.requests.stacks = True

    # --- the life of a worker -----------------------------------------------------------------------------------------

    def run(self) -> ExitCode:
        """Start, work until something ends it, shut down. Returns the exit code."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        if not self._register():
            if self.requests.code is not ExitCode.CLEAN:
                return self.requests.code
            return ExitCode.CLEAN if self.requests.stop else ExitCode.REDIS_AWAY
        self.at_start()
        self.start()
        while not self.requests.stop:
            time.sleep(CHECK_INTERVAL_S)
            self.check()
        return self.shut_down()

    def start(self) -> None:
        """Start all threads, intake last."""
        self.pool.start()
        for service in self._services:
            service.start()

    def check(self) -> None:
        """Look after the actors once: start again what died, end when something cannot go on or nothing is left."""
        if self.requests.stacks:
            self.requests.stacks = False
            log.warning("stacks of all threads:\n%s", stacks())
        self.pool.revive()
        for service in self._services:
            if service.died:
                self._revivals += 1
                log.error("the thread of %s died and is started again", service.name)
                if self._revivals > MAX_REVIVALS:
                    self._end(ExitCode.CRASHED, "threads die again and again")
                    return
                service.start()
            elif self._is_stuck(service):
                self._end(ExitCode.CRASHED, f"{service.name} is stuck", drain_s=STUCK_DRAIN_S)
        self._look_after_redis()
        self.at_each_check()
        if self.ticker.replaced:
            self._end(ExitCode.CONFIGURATION, _same_name(self.state.worker_id, "another process"))
        if os.getppid() != self._parent:
            self._parent = os.getppid()
            log.warning("the parent process is gone; this worker stops")
            self.requests.stop = True
        limit = self.state.settings.max_abandoned_threads
        if self.pool.abandoned > limit:
            self._end(ExitCode.TOO_MANY_ABANDONED, f"more than {limit} threads were written off; restart this worker")
        self._end_when_done()

    def shut_down(self) -> ExitCode:
        """Drain, then take everything apart. Returns the exit code.

        The order, intake first and renewal last:
        1. fetcher: claims nothing more and hands back what has not started
        2. scheduler: resigns, so that another worker leads at once
        3. runners: drain; what is unfinished afterwards is interrupted, or written off
        4. committer: records every outcome, so that only unfinished work is left
        5. hand back what is left
        6. ticker: has renewed all leases until here; takes the worker off the list
        """
        state, time_left = self.state, _TimeLeft(self.requests, self._drain_limit_s())
        state.draining = True
        log.info("draining: nothing more is claimed", extra={"running": len(self.pool.running())})
        self.fetcher.stop()
        self.scheduler.stop()
        self.fetcher.join(min(SHUTDOWN_PATIENCE_S + 2.0, time_left.altogether()))
        drained = self._drain(time_left)
        if not drained:
            log.warning("handing back unfinished tasks", extra={"running": len(self.pool.running())})
            self.pool.release(RELEASE_PATIENCE_S)
        self.pool.stop()
        recorded = self._wait_for_outcomes(time_left)
        self.committer.stop()
        self.committer.join(time_left.altogether())
        handed_back = self._hand_back_rest(SHUTDOWN_PATIENCE_S if recorded else 0.0)
        self.ticker.stop()
        self.ticker.join(time_left.altogether())
        self.scheduler.join(min(1.0, time_left.altogether()))
        self.pool.join(min(1.0, time_left.altogether()))
        return self._exit_code(handed_back + len(state.holdings))

    # --- steps of it --------------------------------------------------------------------------------------------------

    def _register(self) -> bool:
        """Make this worker known. Returns False when it cannot be, or is told to stop; the requests say which."""
        give_up_at = time.monotonic() + START_PATIENCE_S
        pause_s, said = 0.1, False
        while not self.requests.stop:
            try:
                taken = self.name_taken()
                if taken:
                    self._end(ExitCode.CONFIGURATION, _same_name(self.state.worker_id, taken))
                elif not self.requests.stop:
                    self.ticker.register()
                    return True
            except RedisUnavailable as error:
                reason, told = error.context.get("reason"), with_advice(error, self.state.settings.redis_url)
                if reason == "auth" or (reason == "unreachable" and time.monotonic() >= give_up_at):
                    log.error("cannot start: %s", told)
                    return False
                if not said:
                    log.warning("waiting for Redis: %s", told)
                    said = True
                time.sleep(pause_s)
                pause_s = min(1.0, pause_s * 2)
        return False

    def _drain_limit_s(self) -> float:
        asked = self.requests.drain_s
        return self.state.settings.drain_timeout_s if asked is None else asked

    def _drain(self, time_left: _TimeLeft) -> bool:
        """Wait for what runs. Returns whether all of it ended."""
        while self.pool.outstanding:
            if time_left.to_drain() <= 0:
                return False
            time.sleep(0.02)
            self.pool.revive()
        return True

    def _wait_for_outcomes(self, time_left: _TimeLeft) -> bool:
        """Wait until all outcomes are recorded; while Redis is away, as long as the drain lasts. Return whether so."""
        give_up_at = time.monotonic() + COMMIT_PATIENCE_S
        while self.committer.backlog and self.committer.alive:
            drained = time_left.to_drain() <= 0 and time.monotonic() >= give_up_at
            if drained or time_left.altogether() <= 1.0:
                return False
            time.sleep(0.01)
        return True

    def _hand_back_rest(self, patience_s: float) -> int:
        rest = [job for job in self.state.holdings.jobs() if job.outcome is None]
        if not rest:
            return 0
        for job in rest:
            job.released = True  # should one have come to a runner after all, it does not start
        try:
            return give_back(self.state, rest, patience_s=patience_s)
        except DtqError as error:
            log.warning("could not hand back %d tasks, they run again after their leases: %s", len(rest), error)
            return len(rest)

    def _exit_code(self, handed_back: int) -> ExitCode:
        code = self.requests.code
        if code is ExitCode.CLEAN and handed_back:
            code = ExitCode.HANDED_BACK
        if code is ExitCode.CLEAN and self.state.burst and self.committer.failed_tasks:
            code = ExitCode.BURST_WITH_FAILURES
        stats = self.state.stats
        log.info(
            "worker stopped: %d succeeded, %d retried, %d failed, %d handed back",
            stats.succeeded,
            stats.retried,
            stats.failed,
            stats.handed_back,
            extra={"exit_code": int(code)},
        )
        return code

    def _end(self, code: ExitCode, why: str, drain_s: float | None = None) -> None:
        if self.requests.code is ExitCode.CLEAN:
            log.error("ending this worker: %s", why)
            self.requests.code, self.requests.drain_s = code, drain_s
        self.requests.stop = True

    def _end_when_done(self) -> None:
        state = self.state
        done = state.exhausted or (state.max_tasks is not None and state.taken >= state.max_tasks)
        if done and not len(state.holdings) and not state.returning:
            self.requests.stop = True

    def _look_after_redis(self) -> None:
        if self._start_redis is None or not self.state.outage.away or time.monotonic() < self._start_redis_at:
            return
        self._start_redis_at = time.monotonic() + START_REDIS_INTERVAL_S
        try:
            self._start_redis()
        except DtqError as error:
            log.warning("the embedded server cannot be started: %s", error)

    def _is_stuck(self, service: Service) -> bool:
        """Whether a service has been in one step for too long, counted in looks: time may stand still for all of us."""
        beats, looks = self._beats.get(service.name, (-1, 0))
        looks = looks + 1 if beats == service.beats else 0
        self._beats[service.name] = (service.beats, looks)
        return looks * CHECK_INTERVAL_S > STUCK_S


def _same_name(worker_id: str, who: str) -> str:
    return f"{who} works as {worker_id} too; give each worker a name of its own (DTQ_WORKER_ID, --name)"


def stacks() -> str:
    """Return where every thread of this process is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    return "\n".join(
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames.items()
    )
