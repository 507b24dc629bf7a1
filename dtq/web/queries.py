"""Query strings and small bodies, as the API reads them: every one checked, none ignored."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar, get_args

from flask import request
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from dtq.bulk.jobs import MAX_IDS, MAX_RATE, MIN_RATE
from dtq.deadletters import DeadFilter
from dtq.errors import InvalidRequest, InvalidTask
from dtq.model import DeadReason
from dtq.states import Status
from dtq.strictjson import MAX_NAME_CHARS, fault, load_json, step
from dtq.submission import JSON_INTEGER, Moment
from dtq.taskfilter import TaskFilter
from dtq.taskquery import parse
from dtq.web.http import MAX_SMALL_BODY_BYTES, read_optional_json_body

M = TypeVar("M", bound=BaseModel)

MAX_WAIT_S = 30
QUEUE = r"^[a-z0-9][a-z0-9_-]{0,63}$"
CURSOR = r"^[0-9]{1,20}-[0-9a-f]{32}$"
STREAM_CURSOR = r"^[1-9][0-9]{0,14}-[0-9]{1,15}$"
_NOT_UNDERSTOOD = "not_understood"
_PLUS_LOST = re.compile(r" (?=[0-9]{2}:[0-9]{2}$)")


def _with_plus(value: Any) -> Any:
    """An offset's plus sign that was not escaped in the query has become a space; no time has one there."""
    return _PLUS_LOST.sub("+", value) if isinstance(value, str) else value


QueryMoment = Annotated[Moment, BeforeValidator(_with_plus)]


def _understood(text: str) -> str:
    """A query of which a part is not understood would find too much."""
    wrong = [f"{_short(clause.text)}: {clause.problem}" for clause in parse(text).problems]
    if wrong:
        raise PydanticCustomError(_NOT_UNDERSTOOD, "{said}", {"said": "\n".join(wrong)})
    return text


def _short(clause: str) -> str:
    """Return a clause as an answer repeats it: in a line, and not at length."""
    line = " ".join(clause.split())
    return line if len(line) <= MAX_NAME_CHARS else f"{line[:MAX_NAME_CHARS]}..."


class TaskFilterQuery(BaseModel):
    """Which tasks. The descriptions complete "must be ..."."""

    model_config = ConfigDict(extra="forbid")

    queue: str | None = Field(default=None, pattern=QUEUE, description="the name of a queue")
    status: Status | None = Field(default=None, description="one of " + ", ".join(Status))
    task_type: str | None = Field(default=None, min_length=1, max_length=128, description="a task type")
    tag: str | None = Field(default=None, min_length=1, max_length=64, description="a tag")
    created_after: QueryMoment | None = Field(default=None, description="an RFC 3339 time with its offset")
    created_before: QueryMoment | None = Field(default=None, description="an RFC 3339 time with its offset")
    q: Annotated[str, AfterValidator(_understood)] | None = Field(
        default=None, max_length=1000, description="a query such as status:dead_lettered error:refused age>10m"
    )

    def chosen(self, now: Callable[[], float]) -> TaskFilter:
        """Return the filter. now: asked for Redis's time when there is a query, for its ages."""
        asked = TaskFilter() if self.q is None else TaskFilter.of(parse(self.q), now())
        given: dict[str, Any] = {
            "queue": self.queue,
            "status": self.status,
            "task_type": self.task_type,
            "tag": self.tag,
            "created_after": unix_seconds(self.created_after),
            "created_before": unix_seconds(self.created_before),
        }
        return replace(asked, **{name: value for name, value in given.items() if value is not None})


class TaskListQuery(TaskFilterQuery):
    """Which tasks, and which page of them."""

    limit: int = Field(default=50, ge=1, le=200, description="an integer from 1 to 200")
    cursor: str | None = Field(
        default=None, pattern=CURSOR, description="the next_cursor of the page before, unchanged"
    )


class AuditQuery(BaseModel):
    """Which entries of the audit, and which page of them."""

    model_config = ConfigDict(extra="forbid")

    actor: str | None = Field(default=None, min_length=1, max_length=200, description="who did it")
    action: str | None = Field(default=None, min_length=1, max_length=64, description="an action, such as queue.pause")
    target: str | None = Field(
        default=None, min_length=1, max_length=200, description="a task id, a queue, a worker id or a bulk job"
    )
    since: QueryMoment | None = Field(default=None, description="an RFC 3339 time with its offset")
    until: QueryMoment | None = Field(default=None, description="an RFC 3339 time with its offset")
    limit: int = Field(default=50, ge=1, le=200, description="an integer from 1 to 200")
    cursor: str | None = Field(
        default=None, pattern=STREAM_CURSOR, description="the next_cursor of the page before, unchanged"
    )


class WaitQuery(BaseModel):
    """How long an answer may wait for the task to end."""

    model_config = ConfigDict(extra="forbid")

    wait: float = Field(
        default=0, ge=0, le=MAX_WAIT_S, allow_inf_nan=False, description=f"a number of seconds from 0 to {MAX_WAIT_S}"
    )


class MessageQuery(BaseModel):
    """How a message is put."""

    model_config = ConfigDict(extra="forbid")

    key: str | None = Field(default=None, min_length=1, max_length=255, description="a string of 1 to 255 characters")
    max_size: int = Field(default=0, ge=0, le=2**53, description="an integer from 0 (any number) on")
    delay_seconds: float = Field(
        default=0, ge=0, le=31_536_000, allow_inf_nan=False, description="a number of seconds from 0 to 31536000"
    )


class Reason(BaseModel):
    """Why an operator does something; the body may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str = Field(default="", max_length=200, description="a string of at most 200 characters")


class DeadFilterQuery(BaseModel):
    """Which dead letters."""

    model_config = ConfigDict(extra="forbid")

    queue: str | None = Field(default=None, pattern=QUEUE, description="the name of a queue")
    task_type: str | None = Field(default=None, min_length=1, max_length=128, description="a task type")
    reason: DeadReason | None = Field(default=None, description="one of " + ", ".join(get_args(DeadReason)))
    error_class: str | None = Field(default=None, min_length=1, max_length=200, description="the class of an error")
    error: str | None = Field(
        default=None, min_length=1, max_length=200, description="a text in the class or the message of the error"
    )
    since: QueryMoment | None = Field(default=None, description="an RFC 3339 time with its offset")
    until: QueryMoment | None = Field(default=None, description="an RFC 3339 time with its offset")

    def chosen(self) -> DeadFilter:
        """Return the filter."""
        return DeadFilter(
            queue=self.queue,
            task_type=self.task_type,
            reason=self.reason,
            error_class=self.error_class,
            error=self.error,
            since=unix_seconds(self.since),
            until=unix_seconds(self.until),
        )


class DeadListQuery(DeadFilterQuery):
    """Which dead letters, and which page of them."""

    limit: int = Field(default=50, ge=1, le=200, description="an integer from 1 to 200")
    cursor: str | None = Field(
        default=None, pattern=STREAM_CURSOR, description="the next_cursor of the page before, unchanged"
    )


class BulkOptions(BaseModel):
    """How something is done to many; the body may be left out where that says what is meant."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dry_run: bool = Field(default=False, description="true or false")
    reason: str = Field(default="", max_length=200, description="a string of at most 200 characters")


Rate = Annotated[float, Field(ge=MIN_RATE, le=MAX_RATE, allow_inf_nan=False)]
_RATE = f"a number from {MIN_RATE:g} to {MAX_RATE:g}: at most so many a second"


class TaskCancelBody(BulkOptions):
    """Which tasks are cancelled; an empty filter means all that have not ended."""

    filter: TaskFilterQuery = Field(description="an object")
    rate: Rate | None = Field(default=None, description=_RATE)


_BY_IDS: dict[str, Any] = {
    "properties": {"task_ids": {"type": "array"}, "filter": {"type": "null"}},
    "required": ["task_ids"],
}
_BY_FILTER: dict[str, Any] = {
    "properties": {"task_ids": {"type": "null"}, "filter": {"type": "object"}},
    "required": ["filter"],
}
_BY_NOTHING: dict[str, Any] = {"properties": {"task_ids": {"type": "null"}, "filter": {"type": "null"}}}


class DeadPurgeBody(BulkOptions):
    """Dead letters, by the ids of their tasks or by a filter; else all of them."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [_BY_IDS, _BY_FILTER, _BY_NOTHING]})

    task_ids: list[Annotated[str, Field(pattern="^[0-9a-f]{32}$")]] | None = Field(
        default=None, min_length=1, max_length=MAX_IDS, description=f"1 to {MAX_IDS} task ids of 32 hexadecimal digits"
    )
    filter: DeadFilterQuery | None = Field(default=None, description="an object")
    rate: Rate | None = Field(default=None, description=_RATE)


class DeadBulkBody(DeadPurgeBody):
    """Dead letters, by the ids of their tasks or by a filter: exactly one of the two. An empty filter means all."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [_BY_IDS, _BY_FILTER]})


class DeadRequeueBody(DeadBulkBody):
    """Dead letters, and where they go instead of where they were."""

    queue: str | None = Field(default=None, pattern=QUEUE, description="the name of a queue")
    priority: Annotated[int, Field(ge=0, le=9), JSON_INTEGER] | None = Field(
        default=None, description="an integer from 0 to 9"
    )


class RequeueOptions(BaseModel):
    """Where a dead letter goes instead of where it was; the body may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    queue: str | None = Field(default=None, pattern=QUEUE, description="the name of a queue")
    priority: Annotated[int, Field(ge=0, le=9), JSON_INTEGER] | None = Field(
        default=None, description="an integer from 0 to 9"
    )
    reason: str = Field(default="", max_length=200, description="a string of at most 200 characters")


def read_query(model: type[M]) -> M:
    """Return the request's query string as `model`. Raises InvalidRequest for what it does not know or allow."""
    given: dict[str, str] = {}
    for name, values in request.args.lists():
        if len(values) > 1:
            raise InvalidRequest("a parameter is given twice", errors=[fault(step(name), "is given twice")])
        given[name] = values[0]
    return _read(model, given, "unknown parameter")


def refuse_query() -> None:
    """Refuse a query string where there is nothing to ask. Raises InvalidRequest."""
    if request.environ.get("QUERY_STRING"):
        faults = [fault(step(name), "unknown parameter") for name in list(request.args)[:20]]
        raise InvalidRequest("this path takes no parameters", errors=faults)


def read_options(model: type[M], limit: int = MAX_SMALL_BODY_BYTES) -> M:
    """Return the request's body, of at most `limit` bytes or none, as `model`. Raises InvalidRequest."""
    body = read_optional_json_body(limit)
    try:
        given = load_json(body) if body else {}
    except InvalidTask as error:  # it is JSON that is wrong here, and no task
        raise InvalidRequest(error.message, **error.context) from None
    return _read(model, given, "unknown field")


def unix_seconds(moment: datetime | None) -> float | None:
    """Return a time as seconds since the epoch."""
    return None if moment is None else (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()


def _read(model: type[M], given: object, unknown: str) -> M:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        faults = []
        for found in error.errors(include_url=False, include_context=False, include_input=False)[:20]:
            path = "".join(step(str(part)) for part in found["loc"])
            if found["type"] == _NOT_UNDERSTOOD:
                faults += [fault(path, line) for line in found["msg"].split("\n")]
            else:
                faults.append(fault(path, _rule(model, found["loc"], unknown)))
        first = faults[0]
        name = first["pointer"].lstrip("/")
        raise InvalidRequest(f"{name}: {first['message']}" if name else first["message"], errors=faults) from None


def _rule(model: type[BaseModel], path: tuple[int | str, ...], unknown: str) -> str:
    """Return what a field must be, as its description says; of a list, also for each of its items."""
    if not path:
        return "must be a JSON object"
    known = model.model_fields.get(str(path[0]))
    if known is None:
        return unknown
    for inner in get_args(known.annotation):
        if len(path) > 1 and isinstance(inner, type) and issubclass(inner, BaseModel):
            return _rule(inner, path[1:], unknown)
    return f"must be {known.description}"
