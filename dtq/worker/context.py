"""What a handler is given beside its payload: the task it works on, its time limit, and a way to report progress."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from dtq import trace
from dtq.errors import TaskCancelled
from dtq.model import Claim
from dtq.trace import TraceContext

PROGRESS_INTERVAL_S = 0.25
"""Progress of one task is written at most once in this time; the last report always arrives."""
MAX_PROGRESS_MESSAGE_CHARS = 500

_task_log = logging.getLogger("dtq.task")
_thread = threading.local()


class TaskContext:
    """One running attempt, as its handler sees it. Belongs to the thread of the handler.

    `cancelled` turns true when somebody cancels the task or another worker has it now; a moment later `TaskCancelled`
    is raised in the handler's thread.
    """

    __slots__ = (
        "_claim",
        "_extra",
        "_log",
        "_progress_at",
        "_send",
        "cancelled",
        "deadline",
        "latest",
        "pending",
        "worker_id",
    )

    def __init__(self, claim: Claim, worker_id: str, deadline: float, send: Callable[[TaskContext], None]) -> None:
        """deadline: monotonic. send: hands the context to whoever writes its `latest` progress down."""
        self._claim = claim
        self._send = send
        self._extra: Mapping[str, Any] | None = None
        self._log: logging.LoggerAdapter[logging.Logger] | None = None
        self._progress_at = -math.inf
        self.cancelled = False
        self.deadline = deadline
        """When the time limit ends, on `time.monotonic()`."""
        self.worker_id = worker_id
        self.latest: tuple[float, str] | None = None
        """The last progress that was reported: fraction and message."""
        self.pending = False
        """Whether `latest` still waits to be sent."""

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self._claim.task_id

    @property
    def task_type(self) -> str:
        """The task's type."""
        return self._claim.task_type

    @property
    def queue(self) -> str:
        """The queue that the task came from."""
        return self._claim.queue

    @property
    def attempt(self) -> int:
        """The number of this start, from 1."""
        return self._claim.attempt

    @property
    def priority(self) -> int:
        """The band that the task came from, 9 the most urgent."""
        return self._claim.priority

    @property
    def claim(self) -> Claim:
        """The claim that this attempt runs under."""
        return self._claim

    @property
    def idempotency_key(self) -> str | None:
        """The key that the task was submitted with, if any."""
        key = self._extras().get("idempotency_key")
        return None if key is None else str(key)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata that the task was submitted with."""
        found = self._extras().get("metadata")
        return found if isinstance(found, dict) else {}

    @property
    def trace(self) -> TraceContext | None:
        """The trace (W3C) that the task was submitted in: its `parent` is a `traceparent` to pass on, or None."""
        return None if b'"traceparent"' not in self._claim.extra else trace.from_json(self._extras())

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline, never below 0."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry the ids of task, queue, attempt and worker, and of the trace if any."""
        if self._log is None:
            self._log = logging.LoggerAdapter(_task_log, self.log_fields())
        return self._log

    def log_fields(self) -> Mapping[str, object]:
        """Return what every record of this task carries: ids, and the trace where there is one."""
        fields: dict[str, object] = {
            "task_id": self.task_id,
            "task_type": self.task_type,
            "queue": self.queue,
            "attempt": self.attempt,
            "worker_id": self.worker_id,
        }
        belongs_to = self.trace
        if belongs_to is not None:
            fields["trace_id"] = belongs_to.trace_id
        return fields

    def raise_if_cancelled(self) -> None:
        """Raise TaskCancelled when the task was cancelled: a good place for a handler to stop."""
        if self.cancelled:
            raise TaskCancelled

    def progress(self, fraction: float, message: str = "") -> None:
        """Report how far the task is, from 0 to 1, for the dashboard and the API. Never waits, never fails on Redis.

        Raises ValueError for a fraction that is not a number.
        """
        value = float(fraction)
        if math.isnan(value):
            raise ValueError("the fraction of a progress is a number from 0 to 1")
        self.latest = (min(1.0, max(0.0, value)), str(message)[:MAX_PROGRESS_MESSAGE_CHARS])
        self.pending = True
        self.send_due_progress(time.monotonic())

    def send_due_progress(self, now: float) -> None:
        """Send what waits, unless something was sent a moment ago."""
        if self.pending and now - self._progress_at >= PROGRESS_INTERVAL_S:
            self.send_progress(now)

    def send_progress(self, now: float) -> None:
        """Send what waits."""
        if self.pending:
            self.pending = False
            self._progress_at = now
            self._send(self)

    def _extras(self) -> Mapping[str, Any]:
        if self._extra is None:
            parsed = json.loads(self._claim.extra) if self._claim.extra else {}
            self._extra = parsed if isinstance(parsed, dict) else {}
        return self._extra


def current_context() -> TaskContext | None:
    """Return the context of the task that runs in this thread; None outside of a handler."""
    return getattr(_thread, "context", None)


def current_log_fields() -> Mapping[str, object] | None:
    """Return what records that are made in this thread carry; None outside of a handler."""
    context = current_context()
    return None if context is None else context.log_fields()


def set_current_context(context: TaskContext | None) -> None:
    """Note which task runs in this thread."""
    _thread.context = context
