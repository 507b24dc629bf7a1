"""What the log tells of outcomes: a line each, once it is recorded.

What went as it should is told as long as there is little of it; beyond that, how many, once a second: a worker that
does ten thousand a second would spend half its time on writing lines that nobody reads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from dtq.log import log_with_trace
from dtq.model import Outcome
from dtq.states import Status
from dtq.worker.state import Job, ids

log = logging.getLogger(__name__)

LINES_A_SECOND = 50
MAX_TYPES = 5
"""Task types that a summary names."""
_FAILED = frozenset({Status.DEAD_LETTERED, Status.FAILED, Status.RETRYING})


class OutcomeLog:
    """Used by the committer's thread alone: `settle` before each batch, then `tell` for each of it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._second = 0
        self._lines = 0
        self._untold: dict[tuple[str, Status], int] = {}

    def settle(self) -> None:
        """Begin a new second, if one has begun, and tell how much of the last one was not told."""
        second = int(self._clock())
        if second == self._second:
            return
        self._second, self._lines = second, 0
        if self._untold:
            most = sorted(self._untold.items(), key=lambda item: -item[1])[:MAX_TYPES]
            named = ", ".join(f"{number} {task_type} {status}" for (task_type, status), number in most)
            more = ", ..." if len(self._untold) > MAX_TYPES else ""
            log.info("%d more outcomes within a second: %s%s", sum(self._untold.values()), named, more)
            self._untold.clear()

    def tell(self, job: Job, status: Status) -> None:
        """Log what became of a task, now that it is recorded."""
        outcome = job.outcome
        if outcome is None:
            return
        if status in _FAILED:
            self._tell_failure(job, outcome, status)
        elif outcome.result_too_large:
            extra = ids(job, outcome)
            log.warning("the result is larger than DTQ_RESULT_MAX_BYTES and was not kept", extra=extra)
        elif self._lines >= LINES_A_SECOND:
            key = (job.claim.task_type, status)
            self._untold[key] = self._untold.get(key, 0) + 1
        elif log.isEnabledFor(logging.INFO):
            self._lines += 1
            self._tell_usual(job, outcome, status)

    def _tell_failure(self, job: Job, outcome: Outcome, status: Status) -> None:
        if status is Status.RETRYING:
            log.warning("task failed, next attempt in %.1f s", outcome.delay_ms / 1000, extra=ids(job, outcome))
            return
        unexpected = outcome.error is not None and outcome.reason == "permanent"
        trace = outcome.error.traceback if outcome.error is not None and unexpected else ""
        message = f"task failed for good: {outcome.reason or 'unknown_task_type'}"
        log_with_trace(log, message, trace, ids(job, outcome))

    def _tell_usual(self, job: Job, outcome: Outcome, status: Status) -> None:
        if status is Status.SUCCEEDED:
            log.info("task succeeded", extra=ids(job, outcome))
        elif status is Status.CANCELLED:
            log.info("task was cancelled", extra=ids(job, outcome))
        elif outcome.kind == "snooze":
            log.info("task snoozes for %.1f s", outcome.delay_ms / 1000, extra=ids(job, outcome))
        else:  # again each second until somebody knows it: told once
            level = logging.INFO if job.claim.unknown_since is None else logging.DEBUG
            log.log(level, "task was put off: no handler here for its type", extra=ids(job, outcome))
