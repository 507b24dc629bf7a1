"""Between the records of `model` and the rows that the scripts take and give."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dtq import model
from dtq.keys import idempotency_scope
from dtq.model import Actor, Claim, Outcome, Task
from dtq.scripts import Argument
from dtq.states import Status
from dtq.submission import Submission
from dtq.trace import TraceContext

_OPTIONS = frozenset(
    {"max_attempts", "timeout_ms", "delay_seconds", "run_at", "idempotency_key", "metadata"}
)  # metadata: it may hold ttl_seconds
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


def submit_item(task_id: str, submission: Submission, trace: TraceContext | None = None) -> tuple[Argument, ...]:
    """Return a row of `task_submit`. trace: what the task belongs to."""
    return (
        task_id,
        submission.queue,
        submission.task_type,
        submission.priority,
        "" if _OPTIONS.isdisjoint(submission.model_fields_set) else _options(submission),
        _with_trace(submission.extra_json, trace),
        submission.payload_json,
    )


def _options(submission: Submission) -> str:
    """Return what most submissions leave out, as one text."""
    key, ttl_s = submission.idempotency_key, submission.ttl_seconds
    told = (
        submission.max_attempts,
        submission.timeout_ms,
        submission.run_at_ms,
        submission.delay_ms,
        None if key is None else idempotency_scope(submission.queue, key),
        None if key is None else submission.fingerprint,
        None if ttl_s is None else max(1, round(ttl_s * 1000)),
    )
    return "\t".join("" if part is None else str(part) for part in told)


def _with_trace(extra: bytes, trace: TraceContext | None) -> bytes:
    if trace is None:
        return extra
    told = model.dumps(trace.as_json()).encode()
    return told[:-1] + b"," + extra[1:] if extra else told


def accepted_task(task_id: str, submission: Submission, created_us: int, warnings: Sequence[str] = ()) -> Task:
    """Return the task that a submission has just become, without asking Redis for it."""
    created_at = created_us / 1e6
    due_at = (
        submission.run_at_ms / 1000 if submission.run_at_ms is not None else created_at + submission.delay_ms / 1000
    )
    return Task(
        task_id=task_id,
        task_type=submission.task_type,
        queue=submission.queue,
        status=Status.PENDING if due_at > created_at else Status.QUEUED,
        priority=submission.priority,
        seq=1,
        attempt=0,
        failures=0,
        crashes=0,
        max_attempts=submission.max_attempts,
        timeout_ms=submission.timeout_ms,
        created_at=created_at,
        available_at=max(created_at, due_at),
        started_at=None,
        finished_at=None,
        worker_id=None,
        cancel_requested=False,
        error=None,
        result_state="none",
        payload=submission.payload,
        metadata=submission.metadata,
        tags=submission.tags,
        idempotency_key=submission.idempotency_key,
        warnings=warnings,
    )


def claim_from_reply(raw: list[Any]) -> Claim:
    """Read a claim as `task_claim` returns it."""
    (
        task_id, seq, attempt, task_type, queue, priority, max_attempts, timeout, payload, waited, age, *seldom
    ) = raw  # fmt: skip
    failures, suspect, unknown, extra = seldom or (0, 0, b"", b"")
    return Claim(
        task_id=task_id.decode(),
        seq=seq,
        attempt=attempt,
        task_type=task_type.decode("utf-8", "replace"),
        queue=queue.decode(),
        priority=int(priority),
        max_attempts=int(max_attempts) if max_attempts else None,
        timeout_ms=int(timeout) if timeout else None,
        failures=int(failures),
        suspect=int(suspect),
        unknown_since=int(unknown) / 1000 if unknown else None,
        payload=payload,
        extra=extra,
        waited_s=waited / 1000,
        age_s=age / 1000,
    )


def commit_item(outcome: Outcome) -> tuple[Argument, ...]:
    """Return a row of `task_commit`."""
    claim = outcome.claim
    told = outcome.max_attempts is None or outcome.max_attempts == claim.max_attempts  # by the record already
    usual = outcome.kind == "succeed" and told and not outcome.result_too_large
    return (
        claim.task_id,
        claim.seq,
        outcome.kind,
        outcome.duration_ms,
        outcome.result or b"",
        "" if usual else _details(outcome, "" if told else str(outcome.max_attempts)),
    )


def _details(outcome: Outcome, max_attempts: str) -> str:
    """Return what a usual success leaves out, as one text; JSON holds no tab as it is."""
    told = (
        "too_large" if outcome.result_too_large else "",
        str(outcome.delay_ms),
        outcome.reason,
        _error(outcome),
        _history(outcome),
        max_attempts,
        outcome.disposition.value,
    )
    return "\t".join(told)


def _error(outcome: Outcome) -> str:
    if outcome.error is None:
        return ""
    return model.dumps({"class": outcome.error.error_class, "message": outcome.error.message})


def _history(outcome: Outcome) -> str:
    """Return the members of the history entry that this side knows, without braces: the script adds the others."""
    if outcome.kind == "succeed":
        return ""
    entry: dict[str, Any] = {"o": outcome.disposition.value, "d": outcome.duration_ms}
    if outcome.error is not None:
        entry |= {"c": outcome.error.error_class, "m": outcome.error.message, "t": outcome.error.traceback}
    if outcome.kind == "retry":
        entry["r"] = outcome.delay_ms
    return model.dumps(entry)[1:-1]


def plain(text: str) -> str:
    """Return a name or a reason from people fit for lines and records: no control characters, encodable, bounded."""
    return _CONTROL.sub(" ", text)[:200].encode(errors="replace").decode()


def who(actor: Actor) -> str:
    """Return an actor as the scripts take it."""
    return "\t".join(map(plain, (actor.name, actor.reason, actor.request_id)))
