"""Every error that dtq raises on purpose, in one tree.

Each class carries the `code` that machines read and the HTTP status that the API answers with; an instance carries a
message for people (what happened, what to do) and a context that is safe to show: no payloads, no passwords.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar


class DtqError(Exception):
    """The root of the tree: catch this to catch everything that dtq raises on purpose."""

    code: ClassVar[str] = "INTERNAL_ERROR"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, **context: Any) -> None:
        """message: for people. context: small values for machines, shown in API answers beside the code."""
        super().__init__(message)
        self.message = message
        self.context = context


# --- what a handler raises to say how its attempt ended --------------------------------------------------------------


class RetryableError(DtqError):
    """Raised by a handler: this attempt failed and another one may succeed."""

    code = "RETRYABLE"

    def __init__(self, message: str = "", *, after_s: float | timedelta | None = None, **context: Any) -> None:
        """after_s: seconds until the next attempt, instead of the usual delay, which holds for what is no number."""
        super().__init__(message, **context)
        self.after_s = after_s


class PermanentError(DtqError):
    """Raised by a handler: no further attempt can succeed; the task becomes a dead letter at once."""

    code = "PERMANENT"

    def __init__(self, message: str = "", **context: Any) -> None:
        super().__init__(message, **context)


class Snooze(DtqError):
    """Raised by a handler: not now; run the task again later without counting this start as an attempt."""

    code = "SNOOZE"

    def __init__(self, seconds: float | timedelta) -> None:
        """seconds: how long the task waits at least; one for what is no number."""
        super().__init__(f"snoozed for {seconds} s")
        self.seconds = seconds


class TaskTimeout(DtqError):
    """Raised in a handler's thread when its `timeout_ms` has passed."""

    code = "TASK_TIMEOUT"

    def __init__(self, message: str = "the task ran longer than its timeout_ms", **context: Any) -> None:
        super().__init__(message, **context)


class TaskCancelled(DtqError):
    """Raised in a handler's thread, or by `ctx.raise_if_cancelled()`, when somebody cancelled the task."""

    code = "TASK_CANCELLED"

    def __init__(self, message: str = "the task was cancelled", **context: Any) -> None:
        super().__init__(message, **context)


# --- what a submission can be refused for -----------------------------------------------------------------------------


class InvalidTask(DtqError):
    """The submission breaks a rule; nothing was stored. `context["errors"]` names each field."""

    code, http_status = "INVALID_TASK", 400


class UnknownTaskType(DtqError):
    """No live worker knows the task type, and DTQ_REJECT_UNKNOWN_TYPES is on."""

    code, http_status = "UNKNOWN_TASK_TYPE", 400


class PayloadTooLarge(DtqError):
    """The payload, the body or the batch is larger than its limit; nothing was stored."""

    code, http_status = "PAYLOAD_TOO_LARGE", 413


class QueueFull(DtqError):
    """The queue holds as many tasks as DTQ_MAX_QUEUE_DEPTH allows; `context["retry_after"]` says when to try (s)."""

    code, http_status = "QUEUE_FULL", 429


class ScheduleFull(DtqError):
    """As many delayed tasks wait as DTQ_MAX_SCHEDULED allows."""

    code, http_status = "SCHEDULE_FULL", 429


class TooManyQueues(DtqError):
    """There are DTQ_MAX_QUEUES queues already; use one of them or raise the limit."""

    code, http_status = "TOO_MANY_QUEUES", 429


class RedisFull(DtqError):
    """Redis is at, or close to, its maxmemory; nothing was stored."""

    code, http_status = "REDIS_FULL", 429


class IdempotencyInProgress(DtqError):
    """A task with this idempotency key has not finished; `context["task_id"]` names it."""

    code, http_status = "IDEMPOTENCY_IN_PROGRESS", 409


class IdempotencyKeyReused(DtqError):
    """The idempotency key came with another body before; use a fresh key for another task."""

    code, http_status = "IDEMPOTENCY_KEY_REUSED", 422


# --- what an operation on a task can meet -----------------------------------------------------------------------------


class TaskNotFound(DtqError):
    """There is no task with this id: it never existed, or its retention ended."""

    code, http_status = "TASK_NOT_FOUND", 404


class DeadLetterNotFound(DtqError):
    """The task is not among the dead letters; `context["status"]` says what it is."""

    code, http_status = "DEAD_LETTER_NOT_FOUND", 404


class BulkJobNotFound(DtqError):
    """There is no such bulk job: it never existed, or its record has expired."""

    code, http_status = "BULK_JOB_NOT_FOUND", 404


class TooManyBulkJobs(DtqError):
    """As many bulk jobs as may be open at once have not ended; wait for one, or abort one."""

    code, http_status = "TOO_MANY_BULK_JOBS", 429


class BulkJobEnded(DtqError):
    """The bulk job has ended already; `context["state"]` says how."""

    code, http_status = "BULK_JOB_ENDED", 409


class WorkerNotFound(DtqError):
    """There is no live worker with this id."""

    code, http_status = "WORKER_NOT_FOUND", 404


class TaskFinished(DtqError):
    """The task has ended already; `context["status"]` says how."""

    code, http_status = "TASK_FINISHED", 410


class WrongState(DtqError):
    """The task is not in a status that allows this; `context["status"]` says which it is in."""

    code, http_status = "WRONG_STATE", 409


class LeaseLost(DtqError):
    """Another worker holds the task now; the caller must drop its result."""

    code, http_status = "LEASE_LOST", 409


class NewerSchema(DtqError):
    """A record was written by a newer dtq; this process leaves it alone. Upgrade this process."""

    code, http_status = "NEWER_SCHEMA", 409


class Undecodable(DtqError):
    """A stored record cannot be read; it was changed by something other than dtq."""

    code, http_status = "UNDECODABLE", 500


# --- what the message queue says --------------------------------------------------------------------------------------


class TopicFull(DtqError):
    """The topic holds `max_size` messages; of several that were put, `results` says which are stored."""

    code, http_status = "TOPIC_FULL", 429

    def __init__(self, message: str, *, results: Sequence[bool | None] = (), **context: Any) -> None:
        """results: of put_many, by place: stored, known already (False), or refused (None)."""
        super().__init__(message, **context)
        self.results = list(results)


class MessageLost(DtqError):
    """The message belongs to another consumer now, or was acknowledged by one; what was done with it does not count."""

    code, http_status = "MESSAGE_LOST", 409


class SubscriptionClosed(DtqError):
    """The subscription was closed, or not entered (`with queue.subscribe(...) as subscription`)."""

    code, http_status = "SUBSCRIPTION_CLOSED", 409


# --- what the API refuses, and its Python client raises ---------------------------------------------------------------


class InvalidRequest(DtqError):
    """The query, a header or the body of the request breaks a rule; `context["errors"]` names what."""

    code, http_status = "INVALID_REQUEST", 400


class KeyMissing(DtqError):
    """The call needs an API key and has none."""

    code, http_status = "API_KEY_MISSING", 401


class KeyWrong(DtqError):
    """The API key is none of this server's."""

    code, http_status = "API_KEY_WRONG", 403


class RoleTooSmall(DtqError):
    """The API key is right, and its role does not allow the call; `context["needed"]` says which one does."""

    code, http_status = "ROLE_TOO_SMALL", 403


class TooManyFailures(DtqError):
    """Too many wrong keys came from this address; `context["retry_after"]` says when to try again (s)."""

    code, http_status = "TOO_MANY_FAILURES", 429


class TopicNotFound(DtqError):
    """No topic of a message queue can have this name."""

    code, http_status = "TOPIC_NOT_FOUND", 404


class QueueNotFound(DtqError):
    """No queue can have this name."""

    code, http_status = "QUEUE_NOT_FOUND", 404


class HttpError(DtqError):
    """The server answered something that this dtq does not know; `context` has its `status`, and `code` if it has one.

    Raised by dtq.http_client only.
    """

    code, http_status = "HTTP_ERROR", 502


class ServerUnreachable(DtqError):
    """The API's server cannot be reached; nothing is known about what was asked. Raised by dtq.http_client only."""

    code, http_status = "SERVER_UNREACHABLE", 503


# --- the surroundings -------------------------------------------------------------------------------------------------


class RedisUnavailable(DtqError):
    """Redis cannot be reached or refuses to serve for now; nothing is known about what was asked. Try again."""

    code, http_status = "REDIS_UNAVAILABLE", 503


class ConfigurationError(DtqError):
    """A setting, a module or a server is not what it must be; the message names it and what is allowed."""

    code = "CONFIGURATION"


class ConfigurationMismatch(ConfigurationError):
    """The message queue has another visibility timeout; all that use it must name the same one."""

    code, http_status = "CONFIGURATION_MISMATCH", 409


class ServerStartFailed(ConfigurationError):
    """The embedded server could not be started; the message holds its last log lines."""

    code = "SERVER_START_FAILED"
