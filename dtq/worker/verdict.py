"""What the end of a handler means for its task: the closed list of the contract's section 6, without any I/O."""

from __future__ import annotations

import math
import random
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType

from dtq.backoff import Backoff
from dtq.errors import PermanentError, RedisUnavailable, RetryableError, Snooze, TaskCancelled, TaskTimeout
from dtq.model import (
    DEFAULT_MAX_ATTEMPTS,
    MAX_MESSAGE_CHARS,
    MAX_TRACEBACK_CHARS,
    Claim,
    DeadReason,
    ErrorInfo,
    Outcome,
    dumps,
)
from dtq.registry import Handler
from dtq.states import Disposition
from dtq.strictjson import MAX_DEPTH

MAX_MESSAGE_BYTES = 2_000
MAX_TRACEBACK_BYTES = 5_000
"""With the message and the class well below the 8 KiB that are kept of an error."""
MAX_FRAMES = 20
MAX_CLASS_CHARS = 128
_LONGEST_DELAY_S = 31_536_000.0
_SNOOZE_MS = 1_000
"""For a Snooze that says no number."""
_MAX_CHAIN = 10
_CALLER = "dtq.worker.timeouts"
_CUT = "... (truncated)"
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]')
"""In JSON, with the strings that may hold some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a worker's settings say about outcomes."""

    backoff: Backoff
    max_attempts: int
    """DTQ_MAX_ATTEMPTS: what a handler asks for is cut to this."""
    result_max_bytes: int
    uniform: Callable[[], float] = random.random


def allowed_attempts(claim: Claim, handler: Handler | None, rules: Rules) -> int:
    """Return how many failures end the task: the submission's limit, else the handler's, else 5."""
    if claim.max_attempts is not None:
        return claim.max_attempts
    asked = DEFAULT_MAX_ATTEMPTS if handler is None or handler.max_attempts is None else handler.max_attempts
    return min(asked, rules.max_attempts)


def returned(claim: Claim, handler: Handler, value: object, duration_ms: int, rules: Rules) -> Outcome:
    """Return the outcome of a handler that returned: success, if its result can be kept."""
    result, too_large = None, False
    if value is not None:
        try:
            text = dumps(value)
            result = text.encode()
            too_large = len(result) > rules.result_max_bytes or _too_deep(text)
        except RecursionError:
            too_large = True
        except (TypeError, ValueError) as error:
            message = f"the handler's result is not JSON: {text_of(error)}"
            return dead(claim, handler, ErrorInfo(class_of(error), clean(message)), duration_ms, rules)
        if too_large:
            result = None
    return Outcome(
        claim=claim,
        kind="succeed",
        duration_ms=duration_ms,
        result=result,
        result_too_large=too_large,
        max_attempts=claim.max_attempts or allowed_attempts(claim, handler, rules),
    )


def raised(
    claim: Claim, handler: Handler, error: BaseException, duration_ms: int, rules: Rules, *, timed_out: bool = False
) -> Outcome:
    """Return the outcome of a handler that raised.

    timed_out: TaskTimeout was raised in it, so an error that came out of the interruption is the timeout's.
    """
    if isinstance(error, Snooze):
        return _snoozed(claim, handler, error, duration_ms, rules)
    if isinstance(error, TaskCancelled):
        return cancelled(claim, duration_ms, str(error))
    info = describe(error)
    if timed_out and not isinstance(error, PermanentError) and _comes_from_timeout(error):
        return retry_or_dead(claim, handler, info, duration_ms, rules, disposition=Disposition.TIMED_OUT)
    if isinstance(error, TaskTimeout):
        return retry_or_dead(claim, handler, info, duration_ms, rules, disposition=Disposition.TIMED_OUT)
    if is_retryable(error, handler):
        after_s = error.after_s if isinstance(error, RetryableError) else None
        return retry_or_dead(claim, handler, info, duration_ms, rules, after_s=after_s)
    return dead(claim, handler, info, duration_ms, rules)


def is_retryable(error: BaseException, handler: Handler) -> bool:
    """Whether another attempt may succeed. PermanentError never is, whatever `retry_on` says."""
    if isinstance(error, PermanentError):
        return False
    if isinstance(error, (RetryableError, TaskTimeout, RedisUnavailable)):
        return True
    return isinstance(error, handler.retry_on) or _is_redis_connection_error(error)


def retry_or_dead(
    claim: Claim,
    handler: Handler | None,
    info: ErrorInfo,
    duration_ms: int,
    rules: Rules,
    *,
    after_s: object = None,
    disposition: Disposition = Disposition.FAILED,
) -> Outcome:
    """Return a retry while attempts are left, else the end as exhausted.

    after_s: instead of the usual delay, if it is one: a mistake in it must not use all attempts up in a moment.
    """
    limit = allowed_attempts(claim, handler, rules)
    if claim.failures + 1 >= limit:
        return dead(claim, handler, info, duration_ms, rules, reason="exhausted", disposition=disposition)
    asked_ms = _milliseconds(after_s)
    usual_s = rules.backoff.delay_s(claim.attempt, rules.uniform)
    return Outcome(
        claim=claim,
        kind="retry",
        duration_ms=duration_ms,
        delay_ms=int(usual_s * 1000) if asked_ms is None else asked_ms,
        error=info,
        disposition=disposition,
        max_attempts=limit,
    )


def dead(
    claim: Claim,
    handler: Handler | None,
    info: ErrorInfo,
    duration_ms: int,
    rules: Rules,
    *,
    reason: DeadReason = "permanent",
    disposition: Disposition = Disposition.FAILED,
) -> Outcome:
    """Return the outcome of a task that no further attempt can help."""
    return Outcome(
        claim=claim,
        kind="dead",
        duration_ms=duration_ms,
        reason=reason,
        error=info,
        disposition=disposition,
        max_attempts=allowed_attempts(claim, handler, rules),
    )


def cancelled(claim: Claim, duration_ms: int, message: str) -> Outcome:
    """Return the outcome of a task whose cancellation was heard."""
    return Outcome(
        claim=claim,
        kind="cancelled",
        duration_ms=duration_ms,
        error=ErrorInfo("TaskCancelled", clean(message)),
        disposition=Disposition.CANCELLED,
    )


def unknown(claim: Claim) -> Outcome:
    """Return the outcome of a task whose type this worker does not know."""
    message = f"this worker knows no task type {claim.task_type!r}"
    return Outcome(
        claim=claim,
        kind="unknown",
        reason="unknown_task_type",
        error=ErrorInfo("UnknownTaskType", clean(message)),
        disposition=Disposition.FAILED,
    )


def undecodable(claim: Claim, handler: Handler, error: Exception, rules: Rules) -> Outcome:
    """Return the outcome of a task whose stored payload is not what dtq writes."""
    message = f"the stored payload cannot be read: {text_of(error)}"
    return dead(claim, handler, ErrorInfo(class_of(error), clean(message)), 0, rules, reason="undecodable")


# --- what is kept of an error -----------------------------------------------------------------------------------------


def describe(error: BaseException) -> ErrorInfo:
    """Return class, message and traceback of an error, sanitized and bounded. Never raises."""
    return ErrorInfo(class_of(error), clean(text_of(error)), trace_of(error))


def class_of(error: BaseException) -> str:
    """Return the name of the error's class, with its module unless that is builtin or dtq's own."""
    kind = type(error)
    module = kind.__module__
    name = kind.__qualname__ if module in ("builtins", "dtq.errors") else f"{module}.{kind.__qualname__}"
    return clean(name, MAX_CLASS_CHARS)


def text_of(error: BaseException) -> str:
    """Return `str(error)`, cut; or what went wrong with that: exceptions are written by everybody."""
    try:
        text = str(error)
    except BaseException as problem:
        return f"(the message cannot be shown: {type(problem).__name__})"
    return text[: 4 * MAX_MESSAGE_CHARS] if len(text) > 4 * MAX_MESSAGE_CHARS else text


def trace_of(error: BaseException) -> str:
    """Return the innermost frames and the chain of causes, without the messages of the latter beyond a line each."""
    lines: list[str] = []
    link: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if link is None:
            break
        try:
            frames = traceback.format_tb(_handlers_own(link.__traceback__), limit=-MAX_FRAMES)
        except Exception as problem:
            frames = [f"  (frames cannot be shown: {type(problem).__name__})\n"]
        lines.insert(0, "".join(frames) + f"{class_of(link)}: {clean(text_of(link))}\n")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    text = "\nled to:\n\n".join(lines)
    return _clean_lines(text)


def _handlers_own(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frame that called the handler: it is ours, and tells nothing."""
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_globals.get("__name__") == _CALLER:
        trace = trace.tb_next
    return trace


def clean(text: str, chars: int = MAX_MESSAGE_CHARS, size_bytes: int = MAX_MESSAGE_BYTES) -> str:
    """Return one line that can be stored and shown anywhere: no control characters, no lone surrogates, bounded."""
    kept = text[: chars + 1]
    if not kept.isprintable():
        kept = "".join(char if char.isprintable() else " " for char in kept)
    if len(kept) <= chars and len(kept.encode()) <= size_bytes:
        return kept
    kept = kept[: chars - len(_CUT)].encode()[: size_bytes - len(_CUT.encode())].decode(errors="ignore")
    return kept + _CUT


def _clean_lines(text: str) -> str:
    """Return the end of a text of several lines, like `clean`: the end of a traceback says most."""
    tail = text[-MAX_TRACEBACK_CHARS:]
    tail = "".join(char if char.isprintable() or char == "\n" else " " for char in tail)
    cut = len(text) > len(tail)
    raw = tail.encode()
    if len(raw) > MAX_TRACEBACK_BYTES:
        cut, raw = True, raw[-MAX_TRACEBACK_BYTES:]
    tail = raw.decode(errors="ignore")
    if cut:
        tail = f"{_CUT}\n{tail.partition(chr(10))[2]}"
    return tail


# --- details ----------------------------------------------------------------------------------------------------------


def _too_deep(text: str) -> bool:
    """Whether some reader of JSON may stumble over its depth: what a payload may not have, a result may not either."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:  # nearly every one
        return False
    depth = 0
    for bracket in _BRACKETS.findall(text):
        if bracket in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif bracket in "]}":
            depth -= 1
    return False


def _snoozed(claim: Claim, handler: Handler, error: Snooze, duration_ms: int, rules: Rules) -> Outcome:
    delay_ms = _milliseconds(error.seconds)
    return Outcome(
        claim=claim,
        kind="snooze",
        duration_ms=duration_ms,
        delay_ms=_SNOOZE_MS if delay_ms is None else delay_ms,
        max_attempts=allowed_attempts(claim, handler, rules),
    )


def _milliseconds(given: object) -> int | None:
    """Return a delay that a handler gave, made possible: 0 to a year. None for what is no number of seconds."""
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if not isinstance(given, (int, float)) or (isinstance(given, float) and math.isnan(given)):
        return None
    return int(min(max(given, 0.0), _LONGEST_DELAY_S) * 1000)


def _comes_from_timeout(error: BaseException) -> bool:
    link: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if link is None:
            return False
        if isinstance(link, TaskTimeout):
            return True
        link = link.__cause__ or link.__context__
    return False


def _is_redis_connection_error(error: BaseException) -> bool:
    """Whether redis-py raised it for a broken or slow connection; by name, so that a worker need not import it."""
    return any(
        kind.__name__ in ("ConnectionError", "TimeoutError") and kind.__module__.partition(".")[0] == "redis"
        for kind in type(error).__mro__
    )
