"""Events for programs: a page of what has been, and a WebSocket for what happens."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from flask import Blueprint, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from dtq.events import EVENT_TYPES, EventFilter, EventId
from dtq.events.history import MAX_PAGE
from dtq.strictjson import dump_json
from dtq.web.engine import engine
from dtq.web.errors import UpgradeRequired
from dtq.web.http import answer
from dtq.web.operation import Operation, operation
from dtq.web.queries import QUEUE, read_query
from dtq.web.schemas import EventPage
from dtq.web.sockets import serve
from dtq.web.websocket import WebSocket

bp = Blueprint("events", __name__)

_TYPE = f"(?:{'|'.join(sorted(EVENT_TYPES))})"
_LIST_OF_TYPES = f"^{_TYPE}(?:,{_TYPE})*$"

FRAMES_AT_ONCE = 50
"""Frames of one send: little enough for a slow line within the time limit of a send."""


def _types(text: str) -> str:
    if not EVENT_TYPES.issuperset(text.split(",")):
        raise ValueError
    return text


def _place(text: str) -> str:
    EventId.parse(text)
    return text


class EventQuery(BaseModel):
    """Which events. The descriptions complete "must be ..."."""

    model_config = ConfigDict(extra="forbid")

    queue: str | None = Field(default=None, pattern=QUEUE, description="the name of a queue")
    type: Annotated[str, AfterValidator(_types)] | None = Field(
        default=None,
        max_length=1000,
        description="types of events, separated by commas",
        json_schema_extra={"pattern": _LIST_OF_TYPES},
    )
    task_id: str | None = Field(default=None, pattern="^[0-9a-f]{32}$", description="the id of a task")
    since: Annotated[str, AfterValidator(_place)] | None = Field(
        default=None,
        max_length=64,
        description="the id of an event, or 0 for the oldest that is held",
        json_schema_extra={"pattern": "^(?:0|[0-9]{1,15}-[0-9]{1,15}(?:-[0-9]{1,5})?)$"},
    )

    @property
    def wanted(self) -> EventFilter:
        """What it asks for."""
        types = None if self.type is None else frozenset(self.type.split(","))
        return EventFilter(queue=self.queue, types=types, task_id=self.task_id)

    @property
    def place(self) -> EventId | None:
        """Where it begins; None: at the end."""
        return None if self.since is None else EventId.parse(self.since)


class EventPageQuery(EventQuery):
    """The same, a page at a time."""

    limit: int = Field(default=100, ge=1, le=MAX_PAGE, description=f"an integer from 1 to {MAX_PAGE}")


class EventSocketQuery(EventQuery):
    """The same, as it happens."""

    auth: Literal["message"] | None = Field(default=None, description="message")


@bp.get("/api/v1/events")
@operation(Operation(need="read", tag="events", query=EventPageQuery, answers={200: EventPage}))
def index() -> Response:
    """List events, oldest first: those after `since`, or without it the newest.

    `next_since` goes on from here, at once if there is `more`. `gap`: events after `since` are no longer held.
    """
    query = read_query(EventPageQuery)
    history = engine().client.events.history
    page = (
        history.newest(query.wanted, query.limit)
        if query.place is None
        else history.after(query.place, query.wanted, query.limit)
    )
    return answer(
        {
            "events": [event.as_json() for event in page.events],
            "next_since": str(page.last),
            "more": page.more,
            "gap": page.gap,
        }
    )


@bp.get("/ws/events", websocket=True)
def live() -> Response:
    """Send events as they happen, each as a frame of JSON."""
    return serve(partial(_send_events, read_query(EventSocketQuery)))


@bp.get("/ws/events")
def not_a_socket() -> Response:
    """Say what the path speaks."""
    raise UpgradeRequired("this path speaks WebSocket; GET /api/v1/events answers to HTTP")


def _send_events(query: EventSocketQuery, ws: WebSocket) -> None:
    subscribe = engine().client.events.subscribe
    with subscribe(query.wanted, since=query.place, on_ready=ws.wake) as events:
        ws.accept()
        while True:
            items = events.take(FRAMES_AT_ONCE)
            if items:
                ws.send(dump_json(item.as_json()) for item in items)
            ws.wait(0 if items else None)
