"""What happened last, everywhere or in one queue or to one task."""

from __future__ import annotations

from collections.abc import Mapping

from dtq.events import EVENT_TYPES, Event, EventFilter
from dtq.keys import QUEUE_NAME, TASK_ID
from dtq.web.dashboard.page import Asked, Context, page
from dtq.web.dashboard.reads import Reads
from dtq.web.dashboard.words import facts

SHOWN = 100
COLOURS: Mapping[str, str] = {
    "TASK_QUEUED": "queued",
    "TASK_STARTED": "running",
    "TASK_PROGRESS": "running",
    "TASK_SUCCEEDED": "succeeded",
    "TASK_FAILED": "dead_lettered",
    "TASK_DEAD_LETTERED": "dead_lettered",
    "DEAD_LETTER_EVICTED": "dead_lettered",
    "TASK_RETRY_SCHEDULED": "retrying",
    "TASK_RETRIED": "retrying",
    "TASK_CANCELLED": "cancelled",
    "TASK_EXPIRED": "expired",
    "QUEUE_PAUSED": "paused",
}


@page("/events", area="events", parts={"event-rows": "events/_rows.html"})
def index(reads: Reads, asked: Asked) -> Context:
    """Show the newest events, the newest first."""
    kind, queue, task_id = (asked.get(name, "").strip() for name in ("type", "queue", "task_id"))
    wrong = [
        said
        for said, fits in (
            (f"There are no events of the type {kind[:40]}.", not kind or kind in EVENT_TYPES),
            (f"{queue[:64]} can be no queue.", not queue or QUEUE_NAME.fullmatch(queue)),
            ("A task id has 32 hexadecimal digits.", not task_id or TASK_ID.fullmatch(task_id)),
        )
        if not fits
    ]
    wanted = EventFilter(
        queue=queue or None, types=frozenset({kind}) if kind in EVENT_TYPES else None, task_id=task_id or None
    )
    found = [] if wrong else list(reads.client.events.history.newest(wanted, SHOWN).events)
    return {
        "title": "Events",
        "events": found[::-1],
        "types": sorted(EVENT_TYPES),
        "kind": kind,
        "queue": queue,
        "task_id": task_id,
        "wrong": wrong,
        "shown": SHOWN,
        "colours": COLOURS,
        "told": {str(event.id): detail(event) for event in found},
    }


def detail(event: Event) -> str:
    """Return what an event tells beyond its fields, in a line."""
    told = event.as_json()["detail"]
    if isinstance(told, Mapping):
        return facts(told)
    return "" if told is None else str(told)
