"""Query strings and small bodies, as the API reads them: every one checked, none ignored."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from flask import request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dtq.states import Status
from dtq.strictjson import fault, load_json, step
from dtq.submission import JSON_INTEGER, Moment
from dtq.web.errors import InvalidRequest
from dtq.web.http import read_optional_json_body

M = TypeVar("M", bound=BaseModel)

MAX_WAIT_S = 30
QUEUE = r"^[a-z0-9][a-z0-9_-]{0,63}$"
CURSOR = r"^[0-9]{1,20}-[0-9a-f]{32}$"
STREAM_CURSOR = r"^[1-9][0-9]{0,14}-[0-9]{1,15}$"
_PLUS_LOST = re.compile(r" (?=[0-9]{2}:[0-9]{2}$)")


def _with_plus(value: Any) -> Any:
    """An offset's plus sign that was not escaped in the query has become a space; no time has one there."""
    return _PLUS_LOST.sub("+", value) if isinstance(value, str) else value


QueryMoment = Annotated[Moment, BeforeValidator(_with_plus)]


class TaskListQuery(BaseModel):
    """Which tasks, and which page of them. The descriptions complete "must be ..."."""

    model_config = ConfigDict(extra="forbid")

    queue: str | None = Field(default=None, pattern=QUEUE, description="the name of a queue")
    status: Status | None = Field(default=None, description="one of " + ", ".join(Status))
    task_type: str | None = Field(default=None, min_length=1, max_length=128, description="a task type")
    tag: str | None = Field(default=None, min_length=1, max_length=64, description="a tag")
    created_after: QueryMoment | None = Field(default=None, description="an RFC 3339 time with its offset")
    created_before: QueryMoment | None = Field(default=None, description="an RFC 3339 time with its offset")
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


class Reason(BaseModel):
    """Why an operator does something; the body may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str = Field(default="", max_length=200, description="a string of at most 200 characters")


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


def read_options(model: type[M]) -> M:
    """Return the request's body, which may be missing, as `model`. Raises InvalidRequest, InvalidTask."""
    body = read_optional_json_body()
    return _read(model, load_json(body) if body else {}, "unknown field")


def unix_seconds(moment: datetime | None) -> float | None:
    """Return a time as seconds since the epoch."""
    return None if moment is None else (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()


def _read(model: type[M], given: object, unknown: str) -> M:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        faults = []
        for found in error.errors(include_url=False, include_context=False, include_input=False)[:20]:
            name = str(found["loc"][0]) if found["loc"] else ""
            known = model.model_fields.get(name)
            said = f"must be {known.description}" if known else unknown if name else "must be a JSON object"
            faults.append(fault(step(name) if name else "", said))
        first = faults[0]
        name = first["pointer"].lstrip("/")
        raise InvalidRequest(f"{name}: {first['message']}" if name else first["message"], errors=faults) from None
