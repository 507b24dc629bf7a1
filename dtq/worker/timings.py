"""How long tasks waited, ran and took, counted into buckets by queue and task type."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

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


Series: TypeAlias = tuple[Buckets, Buckets, Buckets, Buckets]
"""In the order of BOUNDS."""


class Timings:
    """The buckets of one worker process. Written by the committer's thread alone, read by any."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Series] = {}

    def note(self, job: Job, status: Status, now: float) -> None:
        """Count an attempt whose outcome was recorded.

        status: that the task has now. now: monotonic, when it was recorded.
        """
        claim, outcome = job.claim, job.outcome
        key = (claim.queue, claim.task_type)
        wait, execution, duration, retry_delay = self._series.get(key) or self._new(key)
        if job.started_at and outcome is not None:
            # For each task that runs: spelled out, since three calls would cost as much again
            seconds = claim.waited_s + job.started_at - job.claimed_at
            wait.counts[bisect_left(wait.bounds, seconds)] += 1
            wait.sum_s += seconds
            seconds = job.ran_s or outcome.duration_ms / 1000
            execution.counts[bisect_left(execution.bounds, seconds)] += 1
            execution.sum_s += seconds
        if status in TERMINAL:
            seconds = claim.age_s + now - job.claimed_at
            duration.counts[bisect_left(duration.bounds, seconds)] += 1
            duration.sum_s += seconds
        elif outcome is not None and outcome.kind == "retry":
            seconds = outcome.delay_ms / 1000
            retry_delay.counts[bisect_left(retry_delay.bounds, seconds)] += 1
            retry_delay.sum_s += seconds

    def series(self) -> Mapping[tuple[str, str], Mapping[str, Buckets]]:
        """Return the buckets by (queue, task type), by what they measure."""
        return {key: dict(zip(BOUNDS, series, strict=True)) for key, series in list(self._series.items())}

    def _new(self, key: tuple[str, str]) -> Series:
        pair = key if len(self._series) < MAX_SERIES else _OTHER
        wait, execution, duration, retry_delay = map(Buckets, BOUNDS.values())
        return self._series.setdefault(pair, (wait, execution, duration, retry_delay))
