"""The leader's work: moves what is due, takes back what dead workers held, clears away what is past its time."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING

from dtq.errors import RedisUnavailable
from dtq.redisio import Interrupted
from dtq.worker.said import Summary
from dtq.worker.service import Service
from dtq.worker.state import WorkerState

if TYPE_CHECKING:
    from dtq.streams import LeaderBell

log = logging.getLogger(__name__)

PROMOTE_BATCH = 100
RECLAIM_BATCH = 100
SWEEP_BATCH = 200
SWEEP_INTERVAL_S = 10.0
SAMPLE_INTERVAL_S = 15.0
RECONCILE_BATCH = 200
RECONCILE_INTERVAL_S = 1.0
RECONCILE_BUSY_S = 0.1
"""While there is more to look at: 10 000 tasks in ten seconds."""
CHECK_INTERVAL_S = 3.5
"""Between two looks whether any queue holds less than it should. With the tick and both bells, a worker that leads and
has nothing to do sends two commands a second."""
RECONCILE_REST_S = 20.0
"""Between two rounds of the reconciler over all tasks that have not ended."""
LONGEST_SLEEP_S = 10.0
YIELD_S = 0.002
"""Between two batches of a backlog: claims and commits come in between."""


class Scheduler(Service):
    """Works while this worker leads; sleeps until the next due time or a ring of the leader's bell."""

    def __init__(self, state: WorkerState, bell: LeaderBell) -> None:
        super().__init__("scheduler", state.outage)
        self._state = state
        self._bell = bell
        self._upkeep = state.broker.upkeep
        self._leads = threading.Event()
        self._reclaim_wanted = True
        """The tick looks for ended leases, and rings."""
        self._promote_at = 0.0
        """When to look at the schedule again, at the latest."""
        self._due_at = 0.0
        """When the next task is due, as far as is known."""
        self._sweep_at = 0.0
        self._sample_at = 0.0
        self._reconcile_at = 0.0
        self._check_at = 0.0
        self._repaired = Summary(log, "put tasks back in place that their queues had lost: %d")

    def lead(self, leads: bool) -> None:
        """Begin or cease to lead: the ticker has asked for the lock."""
        if leads and not self._leads.is_set():
            log.debug("this worker leads: it promotes, reclaims and sweeps")
            self._reclaim_wanted, self._promote_at = True, 0.0
            self._leads.set()
        elif not leads and not self._stop.is_set():
            self._leads.clear()

    def interrupt(self) -> None:
        """Cut the sleep short."""
        self._leads.set()
        self._bell.interrupt()

    def step(self) -> bool:
        """Do what is due, then sleep until something is. Raises RedisUnavailable."""
        if not self._leads.wait(LONGEST_SLEEP_S) or self._stop.is_set():
            return True
        now = time.monotonic()
        more = self._promote() if now >= self._promote_at else False
        if self._reclaim_wanted:
            self._reclaim_wanted = self._upkeep.reclaim(limit=RECLAIM_BATCH) >= RECLAIM_BATCH
            more = more or self._reclaim_wanted
        if now >= self._sweep_at:
            full = self._upkeep.sweep(limit=SWEEP_BATCH) >= SWEEP_BATCH
            self._sweep_at = now if full else now + SWEEP_INTERVAL_S
            more = more or full
        if now >= self._check_at:
            self._check_at = now + CHECK_INTERVAL_S
            if self._upkeep.check():
                self._reconcile_at = now
        if now >= self._sample_at:
            self._upkeep.sample()
            self._sample_at = now + SAMPLE_INTERVAL_S
        if now >= self._reconcile_at:
            self._reconcile_at = now + self._reconcile()
        if more:
            self._stop.wait(YIELD_S)
        else:
            self._sleep()
        return True

    def finish(self) -> None:
        """Let another worker lead at once."""
        try:
            self._state.broker.resign(self._state.worker_id)
        except RedisUnavailable:
            log.info("could not resign; the leader's lock ends by itself")

    def _promote(self) -> bool:
        """Move what is due. Returns whether there may be more."""
        promotion = self._upkeep.promote(limit=PROMOTE_BATCH)
        self._state.outage.over()
        if promotion.moved >= PROMOTE_BATCH:
            return True
        now = time.monotonic()
        self._due_at = math.inf if promotion.next_due_s is None else now + promotion.next_due_s
        self._promote_at = min(self._due_at, now + LONGEST_SLEEP_S)
        return False

    def _sleep(self) -> None:
        # Where nothing is due, promoting waits for the next check: no wake-up of its own
        sleep_s = min(self._due_at, self._check_at, self._reconcile_at) - time.monotonic()
        if sleep_s > 0:
            try:
                rung = self._bell.wait(sleep_s)
            except Interrupted:  # this worker stops
                return
            if rung:
                self._reclaim_wanted, self._promote_at = True, 0.0

    def _reconcile(self) -> float:
        """Do one step. Returns how long to wait for the next, seconds."""
        done = self._upkeep.reconcile(limit=RECONCILE_BATCH)
        if done.repaired:
            self._promote_at = self._due_at = 0.0  # what was put back into the schedule may be due
            self._repaired.add(done.repaired, {})
        self._repaired.flush()
        if done.repaired >= RECONCILE_BATCH // 2:
            return YIELD_S  # where much is lost, somebody waits for it
        if done.finished_round:
            return RECONCILE_REST_S
        return RECONCILE_BUSY_S if done.looked_at >= RECONCILE_BATCH else RECONCILE_INTERVAL_S
