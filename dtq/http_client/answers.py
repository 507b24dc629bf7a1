"""Answers of the API as objects, and its problems as the exceptions that they were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any

import dtq.errors
from dtq.errors import DtqError, HttpError
from dtq.model import Attempt, Task
from dtq.states import Disposition, Status

_STANDARD = frozenset({"type", "title", "status", "detail", "code", "message"})
_TIMES = ("created_at", "available_at", "started_at", "finished_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """A part of a list. Its tasks have no payload, result and history."""

    tasks: Sequence[Task]
    next_cursor: str | None
    """Where the next page begins; None at the end of the list, and only there: a page may be short before it."""
    looked_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEvent:
    """One thing that happened; None where something does not fit."""

    id: str
    """Empty for the type `gap`: events before the next one are lost, and what is known of tasks may be stale."""
    type: str
    time: float | None = None
    """Seconds since the epoch by Redis's clock."""
    task_id: str | None = None
    queue: str | None = None
    task_type: str | None = None
    attempt: int | None = None
    worker_id: str | None = None
    detail: Mapping[str, Any] | None = None


def task_of(answer: Mapping[str, Any]) -> Task:
    """Return the task that an answer shows. `seq` and `expires_at` are not told over HTTP: 0 and None.

    Raises KeyError, ValueError or TypeError for what is no task.
    """
    given = {name: answer[name] for name in answer if name in _FIELDS}
    return Task(
        **{
            **given,
            "status": Status(answer["status"]),
            **{name: _seconds(answer[name]) for name in _TIMES},
            "attempts": tuple(_attempt(one) for one in answer.get("attempts", ())),
            "seq": 0,
        }
    )


_FIELDS = frozenset(Task._fields) - {"seq", "expires_at"}


def page_of(answer: Mapping[str, Any]) -> TaskPage:
    """Return the page of tasks that an answer shows."""
    tasks = tuple(task_of(one) for one in answer["tasks"])
    return TaskPage(tasks=tasks, next_cursor=answer["next_cursor"], looked_at=answer["looked_at"])


def event_of(answer: Mapping[str, Any]) -> RemoteEvent:
    """Return the event that an answer shows."""
    names = ("id", "type", "task_id", "queue", "task_type", "attempt", "worker_id", "detail")
    return RemoteEvent(time=_seconds(answer["time"]), **{name: answer[name] for name in names})


def error_of(status: int, document: object) -> DtqError:
    """Return the exception for an answer that is a problem: by its code; HttpError for one that is not known here."""
    if not isinstance(document, dict) or not isinstance(document.get("code"), str):
        return HttpError(f"the server answered {status} {_phrase(status)} without saying more", status=status)
    message = str(document.get("message") or document.get("detail") or document["code"])
    context = {
        name.removeprefix("task_") if name.removeprefix("task_") in _STANDARD else name: value
        for name, value in document.items()
        if name not in _STANDARD
    }
    kind = _BY_CODE.get(document["code"])
    if kind is None:
        return HttpError(message, **{**context, "status": status, "code": document["code"]})
    error = kind.__new__(kind)
    DtqError.__init__(error, message, **context)
    return error


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _attempt(answer: Mapping[str, Any]) -> Attempt:
    times = {name: _seconds(answer[name]) for name in ("started_at", "finished_at")}
    known = {name: answer[name] for name in answer if name in Attempt.__dataclass_fields__}
    return Attempt(**{**known, **times, "outcome": Disposition(answer["outcome"])})


def _seconds(time: str | None) -> float | None:
    return None if time is None else datetime.fromisoformat(time).timestamp()


def _kinds(base: type[DtqError]) -> Iterator[type[DtqError]]:
    for kind in base.__subclasses__():
        if kind.__module__ == dtq.errors.__name__:
            yield kind
            yield from _kinds(kind)


_BY_CODE = {kind.code: kind for kind in _kinds(DtqError)}
