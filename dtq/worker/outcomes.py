"""What the log tells of outcomes: a line each, once it is recorded.

What went as it should is told as long as there is little of it; beyond that, how many, once a second: a worker that
does ten thousand a second would spend half its time on writing lines that nobody reads.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from dtq.log import log_with_trace
from dtq.model import Outcome
from dtq.states import Status
from dtq.worker.state import Job, ids

log = logging.getLogger(__name__)

LINES_A_SECOND = 50
MAX_TYPES = 5
"""Task types that a summary names."""


class OutcomeLog:
    """Used by the committer's thread alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._second = 0
        self._lines = 0
        self._untold: Counter[str] = Counter()

    def tell(self, job: Job, status: Status) -> None:
        """Log what became of a task, now that it is recorded."""
        outcome = job.outcome
        if outcome is None:
            return
        if status in (Status.DEAD_LETTERED, Status.FAILED):
            unexpected = outcome.error is not None and outcome.reason == "permanent"
            trace = outcome.error.traceback if outcome.error is not None and unexpected else ""
            message = f"task failed for good: {outcome.reason or 'unknown_task_type'}"
            log_with_trace(log, message, trace, ids(job, outcome))
        elif status is Status.RETRYING:
            log.warning("task failed, next attempt in %.1f s", outcome.delay_ms / 1000, extra=ids(job, outcome))
        elif outcome.result_too_large:
            extra = ids(job, outcome)
            log.warning("the result is larger than DTQ_RESULT_MAX_BYTES and was not kept", extra=extra)
        elif log.isEnabledFor(logging.INFO):
            self._tell_usual(job, outcome, status)

    def settle(self) -> None:
        """Tell how much of a past second was not told; called now and then."""
        if self._untold and int(self._clock()) != self._second:
            named = ", ".join(f"{number} {name}" for name, number in self._untold.most_common(MAX_TYPES))
            more = ", ..." if len(self._untold) > MAX_TYPES else ""
            log.info("%d more outcomes within a second: %s%s", self._untold.total(), named, more)
            self._untold.clear()

    def _tell_usual(self, job: Job, outcome: Outcome, status: Status) -> None:
        second = int(self._clock())
        if second != self._second:
            self.settle()
            self._second, self._lines = second, 0
        if self._lines >= LINES_A_SECOND:
            self._untold[f"{job.claim.task_type} {status}"] += 1
            return
        self._lines += 1
        if status is Status.SUCCEEDED:
            log.info("task succeeded", extra=ids(job, outcome))
        elif status is Status.CANCELLED:
            log.info("task was cancelled", extra=ids(job, outcome))
        elif outcome.kind == "snooze":
            log.info("task snoozes for %.1f s", outcome.delay_ms / 1000, extra=ids(job, outcome))
        else:
            log.info("task was put off: no handler here for its type", extra=ids(job, outcome))
