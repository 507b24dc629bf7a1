"""Carrying a bulk job out: step after step, no faster than asked for, leaving Redis to others in between."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from dtq.bulk.jobs import MOST_A_STEP, BulkJobs, Step
from dtq.bulk.model import BulkJob
from dtq.model import new_operation_id

LONGEST_WAIT_S = 2.0
"""After this long a waiting runner says that the job is still its own, and hears of an abort."""
LONGEST_BREATH_S = 0.02
STEP_S = 0.003
"""How long a step should take: its size follows how long the one before took."""
LEAST_A_STEP = 5
FIRST_STEP = 20


def run_job(
    jobs: BulkJobs,
    job: BulkJob,
    *,
    stop: threading.Event | None = None,
    within_s: float = math.inf,
    watch: Callable[[BulkJob], None] | None = None,
) -> BulkJob:
    """Carry a job on until it has ended, `stop` is set, the time is up, or another process works on it.

    Returns the job as it is then; one that has not ended is given back. A job of which nothing is known any more ends
    the same way as it was. watch: called with the job after each step, at most a few times a second.
    Raises RedisUnavailable: the job can be taken up again once Redis is back.
    """
    stopped, runner = stop or threading.Event(), f"run-{new_operation_id()}"
    give_up_at = time.monotonic() + within_s
    pace, shown_at = _Pace(job.wish.rate), 0.0
    while not stopped.is_set() and time.monotonic() < give_up_at:
        began = time.monotonic()
        step = jobs.step(job, runner, pace.allowed(began))
        if step.code == "GONE":
            return job
        now = time.monotonic()
        if watch is not None and (now - shown_at > 0.25 or step.code != "RUNNING"):
            shown_at = now
            watch(jobs.get(job.bulk_id))
        if step.code != "RUNNING":
            return jobs.get(job.bulk_id)
        pace.did(step, began)
        breath_s = min(now - began, LONGEST_BREATH_S)  # half of the time is for others
        stopped.wait(min(max(breath_s, pace.due_in(time.monotonic())), LONGEST_WAIT_S, max(0.0, give_up_at - now)))
    jobs.release(job, runner)
    return jobs.get(job.bulk_id)


class _Pace:
    """How many may be done now. Time that was not used is not made up for."""

    def __init__(self, rate: float | None) -> None:
        """rate: tasks a second; None for no limit."""
        self._rate = rate
        self._size = FIRST_STEP
        # who did it before may have done some in this very moment
        self._due = 0.0 if rate is None else time.monotonic() + self._batch(rate) / rate

    def _batch(self, rate: float) -> int:
        return max(1, min(self._size, math.floor(rate / 5)))

    def allowed(self, now: float) -> int:
        if self._rate is None:
            return self._size
        return 0 if now < self._due else self._batch(self._rate)

    def did(self, step: Step, began: float) -> None:
        """began: when the step did."""
        if step.changed:
            fitting = round(step.changed * STEP_S / max(step.took_s, 1e-4))
            self._size = min(MOST_A_STEP, max(LEAST_A_STEP, min(fitting, 2 * self._size)))
        if self._rate is not None:
            self._due = max(self._due, began) + step.changed / self._rate

    def due_in(self, now: float) -> float:
        return max(0.0, self._due - now)
