"""Suspects: tasks whose worker died. Each start is written down first, so that only the guilty one is counted.

A first-time suspect starts beside what runs already; while it is new, nothing is claimed. A suspect that was lost
beside others runs with nothing beside it, so that the next death of its worker is certainly its doing.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Literal

from dtq.errors import RedisFull, RedisUnavailable
from dtq.worker.handback import give_back
from dtq.worker.pool import Pool
from dtq.worker.state import Job, WorkerState, ids

log = logging.getLogger(__name__)

PROBATION_S = 0.25
"""For how long nothing is claimed after a suspect's start: most that kill their worker do it at once."""
SLOT_WAIT_S = 0.05
EMPTY_WAIT_S = 10.0
"""How long a worker waits to become empty for a suspect before it lets another worker try."""
PAUSE_S = 1.0
"""How long it then claims nothing, so that another worker gets the task."""
POLL_S = 0.005

_Stage = Literal["slot", "emptying", "probation", "solitary"]


class Suspects:
    """Takes the fetcher's turn from the claim of a suspect until claiming may go on."""

    def __init__(self, state: WorkerState, pool: Pool) -> None:
        self.not_before = 0.0
        """Monotonic: claim nothing earlier."""
        self._state = state
        self._pool = pool
        self._job: Job | None = None
        self._stage: _Stage = "slot"
        self._since = 0.0
        self._alone = False

    @property
    def busy(self) -> bool:
        """Whether a suspect is in hand, or runs under conditions that forbid claiming."""
        return self._job is not None

    def take(self, job: Job) -> None:
        """Begin with a suspect that was just claimed. It is held, but no runner has it."""
        self._job = job
        self._stage = "slot" if job.claim.suspect == 1 else "emptying"
        self._since = time.monotonic()

    def step(self, stop: threading.Event) -> bool:
        """Go one step further; waits a little where there is nothing to do but wait. Raises RedisUnavailable."""
        job = self._job
        if job is None:
            return True
        waited_s = time.monotonic() - self._since
        if self._stage in ("slot", "emptying"):
            if job.lost or not self._state.accepting:
                self._give_back()
            elif self._stage == "slot":
                self._wait_for_slot(job, waited_s)
            else:
                self._wait_for_empty(job, waited_s)
        elif not self._state.holdings.holds(job):
            self._job = None
        elif self._stage == "probation" and waited_s > PROBATION_S:
            if self._alone:  # from now on others run beside it: its worker's death would prove nothing
                self._state.broker.start_suspect(self._state.worker_id, job.claim, False)
            self._job = None
        if self._job is not None:
            stop.wait(POLL_S)
        return True

    def drop(self) -> Job | None:
        """Let go of a suspect that has not started and return it, for the caller to hand back."""
        job, self._job = self._job, None
        return job if self._stage in ("slot", "emptying") else None

    def _wait_for_slot(self, job: Job, waited_s: float) -> None:
        if self._pool.outstanding < self._state.concurrency:
            self._start(job, alone=len(self._state.holdings) == 1, then="probation")
        elif waited_s > SLOT_WAIT_S:
            self.not_before = time.monotonic() + SLOT_WAIT_S
            self._give_back()

    def _wait_for_empty(self, job: Job, waited_s: float) -> None:
        if len(self._state.holdings) == 1:
            self._start(job, alone=True, then="solitary")
        elif waited_s > EMPTY_WAIT_S:
            self.not_before = time.monotonic() + PAUSE_S
            self._give_back()

    def _give_back(self) -> None:
        job = self.drop()
        if job is not None:
            give_back(self._state, [job])

    def _start(self, job: Job, *, alone: bool, then: _Stage) -> None:
        try:
            ours = self._state.broker.start_suspect(self._state.worker_id, job.claim, alone)
        except (RedisUnavailable, RedisFull):
            self._since = time.monotonic()  # a repeat changes nothing: try again when Redis is back
            raise
        if not ours:
            log.warning("the claim of a suspect was over before its start; it is dropped", extra=ids(job))
            self._state.holdings.remove(job)
            self._job = None
            return
        log.warning("starting a task whose worker was lost before", extra={**ids(job), "alone": alone})
        self._stage, self._alone, self._since = then, alone, time.monotonic()
        job.claimed_at = self._since  # it was held on purpose: not to be given back for that
        self._pool.put([job])
