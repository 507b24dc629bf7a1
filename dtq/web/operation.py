"""The one decorator of the API's views: who may call, and what the description of the API says of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ParamSpec

from flask import Response
from pydantic import BaseModel

from dtq.web.auth import Need, allow
from dtq.web.queries import refuse_query

P = ParamSpec("P")


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What is told about a view.

    answers: model of the JSON body by status. problems: statuses with a problem document, beside the common ones.
    raw_body: the body is bytes of any type. query: without one, parameters are refused. headers: of the request.
    answer_headers: by status, beside the common.
    """

    need: Need
    tag: str
    answers: Mapping[int, type[BaseModel]]
    body: type[BaseModel] | None = None
    body_required: bool = True
    raw_body: bool = False
    query: type[BaseModel] | None = None
    headers: tuple[str, ...] = ()
    answer_headers: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    problems: tuple[int, ...] = ()


_OPERATIONS: dict[object, Operation] = {}


def operation(told: Operation) -> Callable[[Callable[P, Response]], Callable[P, Response]]:
    """Guard a view, and describe it; the first line of its docstring is its summary."""

    def decorate(view: Callable[P, Response]) -> Callable[P, Response]:
        need, bare = told.need, told.query is None and told.need != "nothing"

        @functools.wraps(view)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> Response:
            allow(need)
            if bare:
                refuse_query()
            return view(*args, **kwargs)

        _OPERATIONS[guarded] = told
        return guarded

    return decorate


def told_of(view: object) -> tuple[Operation, str] | None:
    """Return the operation of a view and its summary, or None for a view that is not part of the API."""
    told = _OPERATIONS.get(view)
    return None if told is None else (told, (inspect.getdoc(view) or "").split("\n")[0].rstrip("."))
