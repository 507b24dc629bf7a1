"""How long tasks waited, ran and took, counted into buckets by queue and task type."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dtq.states import TERMINAL, Status

if TYPE_CHECKING:
    from dtq.worker.state import Job

MAX_SERIES = 200
"""Pairs of queue and task type with buckets of their own; what comes later is counted as `_other`."""

BOUNDS: Mapping[str, Sequence[float]] = {
    "wait": (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
    "execution": (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
    "duration": (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
    "retry_delay": (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0),
}
"""The upper bounds of the buckets, seconds; one more bucket takes the rest."""

_OTHER = ("_other", "_other")


class Buckets:
    """Counts by bucket, and the sum of what was counted. Written by one thread, without a lock."""

    __slots__ = ("bounds", "counts", "sum_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def note(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum_s += seconds


class Timings:
    """The buckets of one worker process. Written by the committer's thread alone, read by any."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], dict[str, Buckets]] = {}

    def note(self, job: Job, status: Status, now: float) -> None:
        """Count an attempt whose outcome was recorded.

        status: that the task has now. now: monotonic, when it was recorded.
        """
        claim, outcome = job.claim, job.outcome
        series = self._series.get((claim.queue, claim.task_type)) or self._new(claim.queue, claim.task_type)
        if job.started_at and outcome is not None:
            series["wait"].note(claim.waited_s + job.started_at - job.claimed_at)
            series["execution"].note(job.ran_s or outcome.duration_ms / 1000)
        if status in TERMINAL:
            series["duration"].note(claim.age_s + now - job.claimed_at)
        elif outcome is not None and outcome.kind == "retry":
            series["retry_delay"].note(outcome.delay_ms / 1000)

    def series(self) -> Mapping[tuple[str, str], Mapping[str, Buckets]]:
        """Return the buckets by (queue, task type), by what they measure."""
        return dict(self._series)

    def _new(self, queue: str, task_type: str) -> dict[str, Buckets]:
        pair = (queue, task_type) if len(self._series) < MAX_SERIES else _OTHER
        return self._series.setdefault(pair, {name: Buckets(bounds) for name, bounds in BOUNDS.items()})
