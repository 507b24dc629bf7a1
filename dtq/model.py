"""The records of the engine, as Python sees them, and their way from and to what Redis holds.

Times are float seconds since the epoch on Redis's clock, durations are seconds or, where the name says so,
milliseconds. The payload is one JSON text in a key of its own, opaque to scripts; metadata, tags and idempotency key
are one more in the hash, there only when given.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from dtq.errors import NewerSchema, Undecodable
from dtq.keys import SCHEMA_VERSION
from dtq.states import TERMINAL, Disposition, Status

ResultState = Literal["none", "stored", "expired", "too_large"]
DeadReason = Literal["exhausted", "permanent", "worker_crashed", "unknown_task_type", "undecodable"]

DEFAULT_MAX_ATTEMPTS = 5
"""Of a task for which neither the submission nor the handler says otherwise."""
MAX_ATTEMPTS_KEPT = 50
MAX_MESSAGE_CHARS = 500
MAX_TRACEBACK_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class Actor:
    """Who does what an operator does, why, and by which request: what the audit tells."""

    name: str
    """Such as `cli:ann` or `api:10.0.0.7`."""
    reason: str = ""
    request_id: str = ""


def new_task_id() -> str:
    """Return a UUIDv7 (RFC 9562, section 5.7) as 32 hex digits: ids sort by this host's time of creation."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(_ten_random_bytes())
    value = (milliseconds & (1 << 48) - 1) << 80 | 7 << 76 | (random >> 68) << 64 | 2 << 62 | random & (1 << 62) - 1
    return f"{value:032x}"


_drawn: list[bytes] = []
"""Random bytes for ids to come: drawn together, since each draw from the system lets another thread go first."""

os.register_at_fork(after_in_child=_drawn.clear)


def _ten_random_bytes() -> bytes:
    while True:
        try:
            return _drawn.pop()  # in one step: no two threads get the same
        except IndexError:
            drawn = os.urandom(10 * 64)
            _drawn.extend([drawn[at : at + 10] for at in range(0, len(drawn), 10)])


def new_operation_id() -> str:
    """Return what tells a script that is sent again from one that is asked for again."""
    return os.urandom(8).hex()


def dumps(value: Any) -> str:
    """Return compact JSON. Raises ValueError for NaN and Infinity, TypeError for what is not JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


@lru_cache(maxsize=1024)  # the tasks of a batch were made at the same time, and each tells it twice
def rfc3339(seconds: float | None) -> str | None:
    """Return a UTC time with milliseconds and `Z` (RFC 3339), or None for None.

    Cut, not rounded, as the scripts cut what they store in ms: nothing is shown before what it follows.
    """
    if seconds is None:
        return None
    whole, milliseconds = divmod(round(seconds * 1_000_000) // 1000, 1000)
    return f"{_to_the_second(whole)}.{milliseconds:03d}Z"


@lru_cache(maxsize=1024)
def _to_the_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


class Claim(NamedTuple):
    """One attempt that this worker may write the outcome of, as long as the lease holds."""

    task_id: str
    seq: int
    """The fencing token: every later write about this attempt carries it."""
    attempt: int
    task_type: str
    queue: str
    priority: int
    max_attempts: int | None
    timeout_ms: int | None
    failures: int
    suspect: int
    """0: never lost by a worker. 1: lost once, start it with a written start. 2: run it with nothing beside it."""
    unknown_since: float | None
    """When a worker first met this task without knowing its type."""
    payload: bytes
    """The JSON text of the payload, not yet parsed."""
    extra: bytes
    """The JSON text of metadata, tags and idempotency key; empty when the task has none."""
    waited_s: float
    """From the moment at which workers could have taken the task to this claim, on Redis's clock."""
    age_s: float
    """From the task's creation to this claim, on Redis's clock."""


class ErrorInfo(NamedTuple):
    """What is kept of an error: sanitized and bounded, safe to show."""

    error_class: str
    message: str
    traceback: str = ""


class Outcome(NamedTuple):
    """What became of one claim, to be recorded by `Broker.commit`."""

    claim: Claim
    kind: Literal["succeed", "retry", "dead", "snooze", "unknown", "cancelled"]
    duration_ms: int = 0
    result: bytes | None = None
    """JSON of the result of a success; None for no result."""
    result_too_large: bool = False
    delay_ms: int = 0
    """Until the next attempt: of a retry or a snooze."""
    reason: DeadReason | Literal[""] = ""
    error: ErrorInfo | None = None
    disposition: Disposition = Disposition.SUCCEEDED
    max_attempts: int | None = None
    """What the worker knows the limit to be, so that the record can tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One entry of a task's history."""

    number: int
    worker_id: str
    started_at: float | None
    finished_at: float | None
    duration_ms: int | None
    outcome: Disposition
    error_class: str | None = None
    message: str | None = None
    traceback: str | None = None
    retry_delay_ms: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the attempt as an answer shows it."""
        return {
            "number": self.number,
            "worker_id": self.worker_id,
            "started_at": rfc3339(self.started_at),
            "finished_at": rfc3339(self.finished_at),
            "duration_ms": self.duration_ms,
            "outcome": self.outcome.value,
            "error_class": self.error_class,
            "message": self.message,
            "traceback": self.traceback,
            "retry_delay_ms": self.retry_delay_ms,
        }

    @classmethod
    def from_json(cls, text: bytes) -> Attempt:
        """Read an entry of the history list; the inverse of what `Broker.commit` and the scripts write."""
        raw = json.loads(text)
        return cls(
            number=int(raw["n"]),
            worker_id=raw.get("w", ""),
            started_at=_seconds(raw.get("s")),
            finished_at=_seconds(raw.get("f")),
            duration_ms=raw.get("d"),
            outcome=Disposition(raw["o"]),
            error_class=raw.get("c"),
            message=raw.get("m"),
            traceback=raw.get("t") or None,
            retry_delay_ms=raw.get("r"),
        )


class Task(NamedTuple):
    """A task as it stands in Redis at one moment."""

    task_id: str
    task_type: str
    queue: str
    status: Status
    priority: int
    seq: int
    attempt: int
    failures: int
    crashes: int
    max_attempts: int | None
    timeout_ms: int | None
    created_at: float
    available_at: float | None
    started_at: float | None
    finished_at: float | None
    worker_id: str | None
    cancel_requested: bool
    error: Mapping[str, Any] | None
    result_state: ResultState
    progress: Mapping[str, Any] | None = None
    requeued: int = 0
    discarded: bool = False
    expires_at: float | None = None
    reason: str | None = None
    payload: Any = None
    metadata: Mapping[str, Any] = MappingProxyType({})
    tags: Sequence[str] = ()
    idempotency_key: str | None = None
    result: Any = None
    attempts: Sequence[Attempt] = ()
    duplicate: bool = False
    warnings: Sequence[str] = ()

    @property
    def terminal(self) -> bool:
        """Whether only an operator can change the task now."""
        return self.status in TERMINAL

    def as_json(self, *, brief: bool = False) -> dict[str, Any]:
        """Return the task as an answer shows it (contract, section 3). brief: as in lists, without the large parts."""
        shown: dict[str, Any] = {
            "task_id": self.task_id,
            "task_type": self.task_type,
            "queue": self.queue,
            "status": self.status.value,
            "attempt": self.attempt,
            "failures": self.failures,
            "crashes": self.crashes,
            "max_attempts": self.max_attempts,
            "priority": self.priority,
            "timeout_ms": self.timeout_ms,
            "metadata": dict(self.metadata),
            "tags": list(self.tags),
            "idempotency_key": self.idempotency_key,
            "created_at": rfc3339(self.created_at),
            "available_at": rfc3339(self.available_at),
            "started_at": rfc3339(self.started_at),
            "finished_at": rfc3339(self.finished_at),
            "worker_id": self.worker_id,
            "progress": self.progress,
            "result_state": self.result_state,
            "error": self.error,
            "reason": self.reason,
            "requeued": self.requeued,
            "discarded": self.discarded,
            "duplicate": self.duplicate,
            "cancel_requested": self.cancel_requested,
            "warnings": list(self.warnings),
        }
        if not brief:
            shown["payload"] = self.payload
            shown["result"] = self.result
            shown["attempts"] = [attempt.as_json() for attempt in self.attempts]
        return shown


class HandlerPolicy(NamedTuple):
    """What a worker publishes of a handler: what the submission may leave open, and what the payload must be."""

    max_attempts: int | None
    timeout_ms: int | None
    schema: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker as its last heartbeat told it."""

    worker_id: str
    queues: Sequence[str]
    concurrency: int
    lease_s: float
    started_at: float
    heartbeat_at: float
    state: Literal["running", "quiet", "draining"]
    running: int
    held: int
    task_types: Sequence[str]
    abandoned_threads: int
    host: str
    pid: int
    version: str

    def as_json(self) -> dict[str, Any]:
        """Return the worker as an answer shows it."""
        return {
            "worker_id": self.worker_id,
            "state": self.state,
            "queues": list(self.queues),
            "task_types": list(self.task_types),
            "concurrency": self.concurrency,
            "running": self.running,
            "held": self.held,
            "abandoned_threads": self.abandoned_threads,
            "lease_s": self.lease_s,
            "started_at": rfc3339(self.started_at),
            "heartbeat_at": rfc3339(self.heartbeat_at),
            "host": self.host,
            "pid": self.pid,
            "version": self.version,
        }


def task_from_redis(
    task_id: str,
    record: Mapping[bytes, bytes],
    *,
    payload: bytes | None = None,
    result: bytes | None = None,
    attempts: Sequence[bytes] = (),
    has_result: bool | None = None,
) -> Task:
    """Build a Task from what Redis holds.

    record: the hash. payload, result: the texts of these keys. attempts: the history list.
    has_result: whether the result is still there, for whoever does not read it; None: it was read.
    Raises NewerSchema when a newer dtq wrote it, Undecodable when something else did.
    """
    try:
        version = int(record.get(b"v", b"0"))
        if version > SCHEMA_VERSION:
            raise NewerSchema(f"task {task_id} was written by a newer dtq (schema {version})", task_id=task_id)
        text = {name.decode(): value.decode() for name, value in record.items()}
        state = _result_state(text.get("result"), result is not None if has_result is None else has_result)
        return _task(task_id, text, payload, result, attempts, state)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise Undecodable(f"the record of task {task_id} cannot be read: {error!r}", task_id=task_id) from error


def _task(
    task_id: str,
    text: Mapping[str, str],
    payload: bytes | None,
    result: bytes | None,
    attempts: Sequence[bytes],
    result_state: ResultState,
) -> Task:
    extra = json.loads(text["extra"]) if text.get("extra") else {}
    status = Status(text["status"])
    started_at, finished_at = _seconds(text.get("started")), _seconds(text.get("finished"))
    history = [Attempt.from_json(entry) for entry in attempts]
    if status is Status.SUCCEEDED:  # the one attempt whose entry is the hash itself: most tasks need no list at all
        history.append(
            Attempt(
                number=int(text.get("attempt", 0)),
                worker_id=text.get("worker", ""),
                started_at=started_at,
                finished_at=finished_at,
                duration_ms=int(text.get("duration", 0)),
                outcome=Disposition.SUCCEEDED,
            )
        )
    return Task(
        task_id=task_id,
        task_type=text["type"],
        queue=text["queue"],
        status=status,
        priority=int(text["priority"]),
        seq=int(text["seq"]),
        attempt=int(text.get("attempt", 0)),
        failures=int(text.get("failures", 0)),
        crashes=int(text.get("crashes", 0)),
        max_attempts=_integer(text.get("max_attempts")),
        timeout_ms=_integer(text.get("timeout")),
        created_at=int(text["created"]) / 1e6,
        available_at=_seconds(text.get("available")) or int(text["created"]) / 1e6,
        started_at=started_at,
        finished_at=finished_at,
        worker_id=text.get("worker"),
        cancel_requested=text.get("cancel") == "1",
        error=json.loads(text["error"]) if text.get("error") else None,
        result_state=result_state,
        progress=json.loads(text["progress"]) if text.get("progress") else None,
        requeued=int(text.get("requeued", 0)),
        discarded=text.get("discarded") == "1",
        expires_at=_seconds(text.get("expires")),
        reason=text.get("reason"),
        payload=json.loads(payload) if payload is not None else None,
        metadata=extra.get("metadata", {}),
        tags=extra.get("tags", ()),
        idempotency_key=extra.get("idempotency_key"),
        result=json.loads(result) if result is not None else None,
        attempts=history,
    )


def _result_state(stored: str | None, there: bool) -> ResultState:
    if stored == "stored":
        return "stored" if there else "expired"
    return "too_large" if stored == "too_large" else "none"


def _seconds(milliseconds: Any) -> float | None:
    return None if milliseconds in (None, "") else int(milliseconds) / 1000


def _integer(text: str | None) -> int | None:
    return int(text) if text else None
