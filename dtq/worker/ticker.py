"""Once a second, in one call: heartbeat, renewal of leases, cancellations, leadership, orders from afar."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import dtq
from dtq.model import DEFAULT_MAX_ATTEMPTS, HandlerPolicy, WorkerInfo
from dtq.worker.pool import Pool
from dtq.worker.scheduler import PROMOTE_BATCH, RECLAIM_BATCH, YIELD_S, Scheduler
from dtq.worker.service import Service
from dtq.worker.state import Job, WorkerState, ids

if TYPE_CHECKING:
    from dtq.broker import Tick

log = logging.getLogger(__name__)

LONGEST_INTERVAL_S = 1.0
LEADING_INTERVAL_S = 0.5
"""Of the leader while anything runs anywhere: it looks for ended leases, which are to be taken within a second."""
YOUNG_S = 0.4
"""What is younger is not renewed yet: most tasks are over by then."""
HELP_S = 0.3
"""How much of a second goes into what the leader has missed: thousands of tasks, when it died in the middle."""
LATE_MS = 1_000
"""What is overdue by this much is done by any worker, when the leader has not."""


class Ticker(Service):
    """The last actor to stop: as long as something is held, its lease is renewed."""

    def __init__(self, state: WorkerState, pool: Pool, scheduler: Scheduler, stop_worker: Callable[[], None]) -> None:
        """stop_worker: called when an operator stops this worker from afar."""
        super().__init__("ticker", state.outage)
        self._state = state
        self._pool = pool
        self._scheduler = scheduler
        self._stop_worker = stop_worker
        # Two intervals are a third of the lease: a task that was too young for one tick is renewed by the next
        self._interval_s = min(LONGEST_INTERVAL_S, state.settings.heartbeat_interval_s, state.lease_s / 6)
        self._due = time.monotonic()
        self._registered = False
        self.replaced = False
        """Another process has taken this worker's name, and has its record."""
        self._host = socket.gethostname()

    def step(self) -> bool:
        """Tick once. Raises RedisUnavailable: leases go on ending, the next step renews what can be renewed."""
        if not self._registered:
            self.register()
        now = time.monotonic()
        lag_s = now - self._due
        held = self._state.holdings.held_since(now - min(YOUNG_S, self._interval_s))
        claims = [job.claim for job in held]
        tick = self._state.broker.tick(self.info(), claims, lead=not self._state.draining)
        self._state.outage.over()
        self._take_in(tick, held)
        for job in held:
            job.leased_at = now
        self._state.stats.renewal_lag_s = max(0.0, lag_s)
        interval_s = min(self._interval_s, LEADING_INTERVAL_S) if tick.leader and tick.busy else self._interval_s
        self._due = max(self._due + interval_s, now)
        self.pause_s = max(0.0, self._due - time.monotonic())
        for job in self._pool.running():
            if job.context is not None:
                job.context.send_due_progress(now)
        if tick.overdue and not tick.leader:
            self._help_out()
        return False

    def register(self) -> None:
        """Tell Redis of this worker and its handlers. Raises RedisUnavailable."""
        state = self._state
        most = state.settings.max_attempts
        policies = {
            name: HandlerPolicy(min(one.max_attempts or DEFAULT_MAX_ATTEMPTS, most), one.timeout_ms, one.schema)
            for name, one in state.registry.handlers.items()
        }
        state.broker.register(self.info(), policies)
        state.outage.over()
        self._registered = True

    def finish(self) -> None:
        """Take this worker off the list."""
        self._state.claims_over.flush(now=True)
        if self._registered and not self.replaced:
            self._state.broker.deregister(self._state.worker_id, self._state.queues)

    def info(self) -> WorkerInfo:
        """Return what the heartbeat tells."""
        state = self._state
        return WorkerInfo(
            worker_id=state.worker_id,
            queues=tuple(state.queues),
            concurrency=state.concurrency,
            lease_s=state.lease_s,
            started_at=state.started_at,
            heartbeat_at=time.time(),
            state=state.mode,
            running=len(self._pool.running()),
            held=len(state.holdings),
            task_types=state.registry.names(),
            abandoned_threads=self._pool.abandoned,
            host=self._host,
            pid=os.getpid(),
            version=dtq.__version__,
        )

    def _take_in(self, tick: Tick, held: list[Job]) -> None:
        state = self._state
        if not tick.registered:  # FLUSHALL, or too long away
            self._registered = False
        self.replaced = tick.replaced
        if tick.lost:
            self._lose([job for job in held if job.claim.task_id in tick.lost])
        if tick.cancelled:
            for job in held:
                if job.claim.task_id in tick.cancelled:
                    self._pool.stop_handler(job)
        state.claims_over.flush()
        self._scheduler.lead(tick.leader and not state.draining)
        if tick.command == "quiet" and not state.quiet:
            log.info("told to be quiet: nothing more is claimed")
            state.quiet = True
        elif tick.command == "stop" and not state.draining:
            log.info("told to stop")
            self._stop_worker()

    def _lose(self, jobs: Sequence[Job]) -> None:
        """Stop tasks whose claims are over, but for those that left our hands while the answer was on its way."""
        lost = [job for job in jobs if job.outcome is None and self._state.holdings.remove(job)]
        if not lost:
            return
        self._state.claims_over.add(len(lost), ids(lost[0]))
        self._state.stats.stale += len(lost)
        for job in lost:
            self._pool.stop_handler(job, lost=True)

    def _help_out(self) -> None:
        """Do what the leader should have done a second ago, all of it unless renewals would have to wait."""
        upkeep = self._state.broker.upkeep
        ends_at = time.monotonic() + min(HELP_S, self._interval_s / 2)
        while upkeep.promote(PROMOTE_BATCH, LATE_MS).moved >= PROMOTE_BATCH and time.monotonic() < ends_at:
            self._stop.wait(YIELD_S)
        while upkeep.reclaim(RECLAIM_BATCH, LATE_MS) >= RECLAIM_BATCH and time.monotonic() < ends_at:
            self._stop.wait(YIELD_S)
