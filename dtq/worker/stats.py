"""What a worker process counts, and how long tasks of each type have taken."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dtq.worker.timings import Timings

MAX_TYPES = 1_000


class Durations:
    """A moving average of the run time by task type, seconds: quick to believe in slowness, slow to believe in speed.

    Written by all runners without a lock: a lost sample does no harm.
    """

    def __init__(self) -> None:
        self._average: dict[str, float] = {}

    def note(self, task_type: str, seconds: float) -> None:
        """Take in how long a task took."""
        known = self._average.get(task_type)
        if known is None:
            if len(self._average) < MAX_TYPES:
                self._average[task_type] = seconds
        else:
            self._average[task_type] = known + (seconds - known) * (0.5 if seconds > known else 0.1)

    def expected_s(self, task_type: str) -> float:
        """Return how long such a task takes; infinity for a type that was never measured."""
        return self._average.get(task_type, math.inf)


class Stats:
    """Counts since the start of this process. Each field is written by one thread only."""

    def __init__(self) -> None:
        self.durations = Durations()
        self.timings = Timings()
        self.claimed = 0
        self.succeeded = 0
        self.retried = 0
        self.failed = 0
        self.cancelled = 0
        self.snoozed = 0
        self.handed_back = 0
        self.stale = 0
        """Outcomes that were refused because the claim was over."""
        self.timed_out = 0
        self.written_off = 0
        self.renewal_lag_s = 0.0
        """By how much the last renewal came later than planned."""

    def as_dict(self) -> Mapping[str, float]:
        """Return the counts by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, (int, float))}
