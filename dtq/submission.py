"""What a caller may ask for: strict JSON in, a validated `Submission` out.

One set of rules for the API, its batch route and the Python client (contract, section 3). The payload is encoded once,
here, and stays opaque bytes from then on: what the handler gets is what was sent, order and every digit of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cached_property
from typing import Annotated, Any, Protocol

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from dtq.errors import DtqError, InvalidTask, PayloadTooLarge
from dtq.strictjson import MAX_DEPTH, MAX_ERRORS, dump_json, fault, invalid, load_json, refusal, step

__all__ = [
    "MAX_BATCH",
    "Submission",
    "SubmissionLimits",
    "load_json",
    "parse_batch",
    "parse_submission",
    "submission_from_object",
]

MAX_BATCH = 1_000
"""Submissions in one batch."""

MAX_METADATA_BYTES = 4_096
MAX_DELAY_S = 31_536_000
MAX_TTL_S = 3_153_600_000
"""100 years: a longer ttl_seconds means never, and is read as this so that times stay exact integers."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_PRINTABLE = r"^[^\x00-\x1f\x7f]*$"


class LimitSource(Protocol):
    """The part of the settings that limits a submission."""

    @property
    def max_payload_bytes(self) -> int: ...

    @property
    def max_attempts(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionLimits:
    """The limits that a deployment may set.

    max_payload_bytes: of the payload as compact UTF-8 JSON. max_attempts: the most that a submission may ask for.
    """

    max_payload_bytes: int = 262_144
    max_attempts: int = 10

    @classmethod
    def from_settings(cls, settings: LimitSource) -> SubmissionLimits:
        """Take the two limits out of the settings."""
        return cls(max_payload_bytes=settings.max_payload_bytes, max_attempts=settings.max_attempts)


def _json_integer(value: Any) -> Any:
    """JSON has one type of number: 5.0 is the integer 5 (JSON Schema says so too), 5.5 and true are not integers."""
    return int(value) if type(value) is float and value.is_integer() else value


def _moment(value: Any) -> Any:
    """Read an RFC 3339 time; leave anything else to the strict check, which refuses it."""
    if isinstance(value, str) and _RFC3339.fullmatch(value):
        try:
            return datetime.fromisoformat(value.upper())
        except ValueError:  # the 31st of February
            return value
    return value


def _with_offset(value: datetime) -> datetime:
    if value.utcoffset() is None:
        raise PydanticCustomError("naive", "a time without its offset")
    return value


def _known_metadata(value: dict[str, Any]) -> dict[str, Any]:
    size = len(dump_json(value, "/metadata"))
    if size > MAX_METADATA_BYTES:
        raise PydanticCustomError("too_long", "too large")
    ttl = value.get("ttl_seconds", 1)
    if type(ttl) not in (int, float) or not ttl > 0:
        raise PydanticCustomError("ttl", "ttl_seconds is not a number above 0")
    return value


JSON_INTEGER = BeforeValidator(_json_integer)
Moment = Annotated[datetime, Strict(), BeforeValidator(_moment), AfterValidator(_with_offset)]
Tag = Annotated[str, Field(min_length=1, max_length=64, pattern=_PRINTABLE)]


class Submission(BaseModel):
    """A task as somebody wants it: every field checked, defaults filled in.

    The descriptions complete the sentence "must be ..." in answers and stand in the API's description.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        json_schema_extra={
            "not": {"required": ["run_at", "delay_seconds"], "properties": {"run_at": {"type": "string"}}}
        },
    )

    task_type: str = Field(
        pattern=r"^[A-Za-z0-9_.:-]{1,128}$", description="a string of 1 to 128 of A-Z a-z 0-9 _ . : -"
    )
    payload: dict[str, Any] = Field(default_factory=dict, description="a JSON object")
    queue: str = Field(
        default="default",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$",
        description="a string of 1 to 64 of a-z 0-9 _ -, beginning with a letter or a digit",
    )
    priority: Annotated[int, JSON_INTEGER] = Field(
        default=5, ge=0, le=9, description="an integer from 0 to 9, where 9 is the most urgent"
    )
    max_attempts: Annotated[int, Field(ge=1), JSON_INTEGER] | None = Field(
        default=None, description="an integer from 1 to DTQ_MAX_ATTEMPTS"
    )
    timeout_ms: Annotated[int, Field(ge=1, le=3_600_000), JSON_INTEGER] | None = Field(
        default=None, description="an integer from 1 to 3600000, milliseconds"
    )
    delay_seconds: float = Field(
        default=0.0, ge=0, le=MAX_DELAY_S, description="a number from 0 to 31536000, and absent when run_at is given"
    )
    run_at: Moment | None = Field(
        default=None, description="an RFC 3339 time with its offset, such as 2030-01-31T12:00:00Z"
    )
    idempotency_key: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        pattern=_PRINTABLE,
        description="a string of 1 to 255 characters, none of them a control character",
    )
    metadata: Annotated[dict[str, Any], AfterValidator(_known_metadata)] = Field(
        default_factory=dict,
        description="a JSON object of at most 4096 bytes; ttl_seconds in it, when given, a number above 0",
    )
    tags: list[Tag] = Field(
        default_factory=list,
        max_length=10,
        description="a list of at most 10 strings of 1 to 64 characters, none of them a control character",
    )

    @model_validator(mode="after")
    def _one_time_only(self) -> Submission:
        if self.run_at is not None and "delay_seconds" in self.model_fields_set:
            raise PydanticCustomError("two_times", "must not come with delay_seconds")
        return self

    @cached_property
    def payload_json(self) -> bytes:
        """The payload as compact UTF-8 JSON: what is measured, stored and handed to the handler."""
        return dump_json(self.payload, "/payload")

    @cached_property
    def extra_json(self) -> bytes:
        """JSON object of those of metadata, tags and idempotency_key that were given; empty when none was."""
        given: dict[str, Any] = {}
        if self.metadata:
            given["metadata"] = self.metadata
        if self.tags:
            given["tags"] = self.tags
        if self.idempotency_key is not None:
            given["idempotency_key"] = self.idempotency_key
        return dump_json(given, "") if given else b""

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits, the same for every body that asks for the same task, whatever its spelling or key."""
        asked = {name: getattr(self, name) for name in _FINGERPRINTED}
        asked["run_at"] = self.run_at_ms
        return hashlib.sha256(dump_json(asked, "", sort=True)).hexdigest()[:32]

    @property
    def ttl_seconds(self) -> float | None:
        """Seconds from creation after which the task must not start any more; None for no limit."""
        ttl = self.metadata.get("ttl_seconds")
        return None if ttl is None else float(min(ttl, MAX_TTL_S))

    @property
    def delay_ms(self) -> int:
        """Milliseconds to wait from the moment of submission; 0 for none, and 0 with run_at."""
        return max(1, round(self.delay_seconds * 1000)) if self.delay_seconds else 0

    @property
    def run_at_ms(self) -> int | None:
        """Milliseconds since the epoch before which the task must not start; a past time means at once."""
        if self.run_at is None:
            return None
        return max(0, -((_EPOCH - self.run_at) // timedelta(milliseconds=1)))


_FIELDS = Submission.model_fields
_FINGERPRINTED = tuple(name for name in _FIELDS if name not in ("idempotency_key", "run_at"))
_validate = Submission.__pydantic_validator__.validate_python


def parse_submission(body: bytes, limits: SubmissionLimits, idempotency_key: str | None = None) -> Submission:
    """Read one submission from a request's body.

    idempotency_key: from the request's header; it wins over the field of the body.
    Raises InvalidTask (`context["errors"]` names each bad field) or PayloadTooLarge.
    """
    asked = load_json(body, MAX_DEPTH + 1)
    if idempotency_key is not None and isinstance(asked, dict):
        if "idempotency_key" in asked:  # it loses, and must be right all the same
            _from_json(asked, limits)
        asked["idempotency_key"] = idempotency_key
    return _from_json(asked, limits)


def parse_batch(body: bytes, limits: SubmissionLimits) -> list[Submission | DtqError]:
    """Read the body of a batch: one submission, or the error that refuses it, for each object, in order.

    Raises InvalidTask when the body itself is not `{"tasks": [...]}`, PayloadTooLarge for more than MAX_BATCH objects.
    """
    batch = load_json(body, MAX_DEPTH + 3)
    if not isinstance(batch, dict) or not isinstance(batch.get("tasks"), list):
        raise invalid("/tasks", 'must be there: the body of a batch is {"tasks": [...]}')
    if len(batch) > 1:
        extra = next(name for name in batch if name != "tasks")
        raise invalid(step(extra), "unknown field; a batch has only tasks")
    if len(batch["tasks"]) > MAX_BATCH:
        raise PayloadTooLarge(f"a batch holds at most {MAX_BATCH} tasks", limit=MAX_BATCH)
    return [_submission_or_error(asked, limits) for asked in batch["tasks"]]


def submission_from_object(asked: object, limits: SubmissionLimits) -> Submission:
    """Check one submission that is a Python object already: the same rules, and the same errors.

    Raises InvalidTask or PayloadTooLarge; also for what JSON cannot say (a key that is no string, a set, a cycle).
    """
    _check_python_object(asked, limits)
    return _from_json(asked, limits)


# --- checks -----------------------------------------------------------------------------------------------------------


def _from_json(asked: object, limits: SubmissionLimits) -> Submission:
    try:
        submission: Submission = _validate(asked)
    except ValidationError as error:
        raise refusal(_readable(error, limits, asked)) from None
    if submission.max_attempts is not None and submission.max_attempts > limits.max_attempts:
        raise invalid("/max_attempts", f"must be {_allowed(_FIELDS['max_attempts'], limits)}")
    size = len(submission.payload_json)
    if size > limits.max_payload_bytes:
        raise PayloadTooLarge(
            f"the payload has {size} bytes as compact JSON; at most {limits.max_payload_bytes} are allowed",
            limit=limits.max_payload_bytes,
            size=size,
        )
    return submission


def _submission_or_error(asked: object, limits: SubmissionLimits) -> Submission | DtqError:
    try:
        return _from_json(asked, limits)
    except (InvalidTask, PayloadTooLarge) as error:
        return error


def _check_python_object(asked: object, limits: SubmissionLimits) -> None:
    """Refuse what the encoder would change or never finish: other types, keys that are no strings, cycles."""
    level, depth, seen = [("", asked)], 0, 0
    while level:
        depth += 1
        seen += len(level)  # each takes two bytes at least, so a small number of them cannot be within the limit
        if seen > limits.max_payload_bytes + 1_000:
            raise PayloadTooLarge(f"the payload is larger than {limits.max_payload_bytes} bytes")
        if depth > MAX_DEPTH + 1:
            raise invalid("", f"more than {MAX_DEPTH} levels of objects and lists")
        level = [
            (field or name, child)
            for field, parent in level
            for name, child in _members(field, parent)
            if child.__class__ not in _SCALARS and not _is_leaf(field or name, child)
        ]


_SCALARS = frozenset({str, int, bool, type(None)})


def _members(field: str, parent: object) -> Iterable[tuple[str, object]]:
    """The children of a dict, list or tuple, each with the name of the field of the submission that it is in."""
    if not isinstance(parent, dict):
        return ((field, child) for child in parent) if isinstance(parent, list | tuple) else ()
    for name in parent:
        if not isinstance(name, str):
            raise invalid(step(field) if field else "", "has a key that is not a string")
    return parent.items()


def _is_leaf(field: str, value: object) -> bool:
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and value - value == 0.0):
        return True
    if isinstance(value, dict | list | tuple):
        return False
    if field == "run_at" and isinstance(value, datetime):
        return True
    raise invalid(step(field), f"holds what JSON cannot say: {type(value).__name__}")


def _readable(error: ValidationError, limits: SubmissionLimits, asked: object) -> list[dict[str, str]]:
    """Say of each field what is allowed in it; of the first MAX_ERRORS, and never what was sent.

    First of fields whose names were probably mistaken: what is missing then is what they were meant to be.
    """
    errors: list[dict[str, str]] = []
    mistaken: list[dict[str, str]] = []
    for found in error.errors(include_url=False, include_context=False, include_input=False)[:MAX_ERRORS]:
        where = found["loc"]
        pointer = "".join(step(part) for part in where if part != "[key]")
        field = _FIELDS.get(str(where[0])) if where else None
        if found["type"] == "two_times":
            errors.append(fault("/run_at", found["msg"]))
        elif field is None and where and (meant := _meant(str(where[0]), asked)):
            mistaken.append(fault(pointer, f"unknown field; did you mean {meant}?"))
        elif field is None:
            errors.append(fault(pointer, "unknown field" if where else "must be a JSON object"))
        elif found["type"] == "missing":
            errors.append(fault(pointer, f"is required: {_allowed(field, limits)}"))
        else:
            errors.append(fault(pointer, f"must be {_allowed(field, limits)}"))
    return mistaken + errors


def _meant(name: str, asked: object) -> str | None:
    """Return the field, not given itself, that an unknown one of this name was probably meant to be."""
    free = [field for field in _FIELDS if not (isinstance(asked, dict) and field in asked)]
    near = [field for field in free if name in field.split("_")] or get_close_matches(name[:64], free, 1)
    return near[0] if near else None


def _allowed(field: FieldInfo, limits: SubmissionLimits) -> str:
    return (field.description or "").replace("DTQ_MAX_ATTEMPTS", str(limits.max_attempts))
