"""What an event is, how an entry of the stream holds several, and which of them a subscriber wants."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from dtq.model import rfc3339

TERMINAL_TYPES = frozenset({"TASK_SUCCEEDED", "TASK_FAILED", "TASK_DEAD_LETTERED", "TASK_CANCELLED", "TASK_EXPIRED"})
"""The ends of tasks: what a slow subscriber loses last."""

EVENT_TYPES = TERMINAL_TYPES | {
    *("TASK_QUEUED", "TASK_STARTED", "TASK_PROGRESS", "TASK_RETRY_SCHEDULED", "TASK_RETRIED"),
    *("TASK_DUPLICATE_ABSORBED", "DEAD_LETTER_EVICTED", "DEAD_LETTER_DISCARDED"),
    *("WORKER_STARTED", "WORKER_STOPPED", "WORKER_STALE"),
    *("QUEUE_PAUSED", "QUEUE_RESUMED", "QUEUE_PURGED"),
}
"""Every type that there is."""

_ID = re.compile(r"([0-9]{1,20})-([0-9]{1,20})(?:-([0-9]{1,6}))?")
_LARGEST = 2**64 - 1
_PAST_EVERY_LINE = 999_999
_FIELDS = 7
_OWN_AFFAIRS = frozenset({"at", "id"})  # of the record of a pause: the event has its own time


class EventId(NamedTuple):
    """The place of an event in the stream: its entry, and its line there. Ids sort as the events happened."""

    ms: int
    """Milliseconds since the epoch by Redis's clock."""
    seq: int
    line: int

    @classmethod
    def parse(cls, text: str) -> EventId:
        """Read an id. `0` is before everything; the id of a whole entry is after all of its events.

        Raises ValueError for anything else.
        """
        if text == "0":
            return cls(0, 0, 0)
        match = _ID.fullmatch(text)
        if match is None or max(int(match[1]), int(match[2])) > _LARGEST:
            raise ValueError("not the id of an event")
        return cls(int(match[1]), int(match[2]), _PAST_EVERY_LINE if match[3] is None else int(match[3]))

    @property
    def entry(self) -> str:
        """The id of the entry, as Redis writes it."""
        return f"{self.ms}-{self.seq}"

    @property
    def is_start(self) -> bool:
        """Whether this is the place before everything."""
        return self.ms == 0 and self.seq == 0

    def __str__(self) -> str:
        """Return the id as `parse` reads it."""
        return f"{self.ms}-{self.seq}-{self.line}"


START = EventId(0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened. Never a payload or a result."""

    id: EventId
    type: str
    task_id: str
    """Empty for what happens to a worker or a queue; so are `queue`, `task_type` and `worker_id` where none fits."""
    queue: str
    task_type: str
    attempt: int
    worker_id: str
    detail: str
    """As the script wrote it: a reason, a number, or JSON."""

    @property
    def at(self) -> float:
        """When it happened, seconds since the epoch by Redis's clock."""
        return self.id.ms / 1000

    @property
    def terminal(self) -> bool:
        """Whether this is the end of a task."""
        return self.type in TERMINAL_TYPES

    def as_json(self) -> dict[str, Any]:
        """Return the event as an answer or a frame shows it; what does not fit is null."""
        return {
            "id": str(self.id),
            "time": rfc3339(self.at),
            "type": self.type,
            "task_id": self.task_id or None,
            "queue": self.queue or None,
            "task_type": self.task_type or None,
            "attempt": self.attempt if self.task_id else None,
            "worker_id": self.worker_id or None,
            "detail": _detail(self.type, self.detail),
        }


@dataclass(frozen=True, slots=True)
class Gap:
    """Events are missing here: the stream was trimmed, or Redis lost them. What is known of tasks may be stale."""

    def as_json(self) -> dict[str, Any]:
        """Return the frame."""
        return {"type": "gap"}


@dataclass(frozen=True, slots=True)
class Dropped:
    """The subscriber was too slow and has lost events, the oldest that were not the end of a task."""

    count: int

    def as_json(self) -> dict[str, Any]:
        """Return the frame."""
        return {"type": "dropped", "count": self.count}


Item: TypeAlias = Event | Gap | Dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events a subscriber or a page is about; None means any."""

    queue: str | None = None
    types: frozenset[str] | None = None
    task_id: str | None = None

    def accepts(self, event: Event) -> bool:
        """Whether the event is wanted."""
        return (
            (self.task_id is None or event.task_id == self.task_id)
            and (self.queue is None or event.queue == self.queue)
            and (self.types is None or event.type in self.types)
        )


def lines_of(entry: Sequence[Any]) -> Iterator[tuple[EventId, list[str]]]:
    """Yield the events of an entry of the stream as (id, fields): what nobody wants costs no object.

    What is no event is left out: something else than dtq wrote it, or a newer dtq.
    """
    entry_id, fields = entry
    ms, _, seq = entry_id.decode().partition("-")
    if not fields or len(fields) < 2 or fields[0] != b"e":
        return
    for line, text in enumerate(fields[1].decode("utf-8", "replace").split("\n")):
        parts = text.split("\t", _FIELDS - 1)
        if len(parts) == _FIELDS and parts[4].isdecimal():
            yield EventId(int(ms), int(seq), line), parts


def event_of(place: EventId, parts: Sequence[str]) -> Event:
    """Return the event of one of `lines_of`."""
    kind, task_id, queue, task_type, attempt, worker_id, detail = parts
    return Event(
        id=place,
        type=kind,
        task_id=task_id,
        queue=queue,
        task_type=task_type,
        attempt=int(attempt),
        worker_id=worker_id,
        detail=detail,
    )


def _detail(kind: str, text: str) -> dict[str, Any] | None:
    """Return the detail as an object: of JSON itself, else a number or a reason under its name."""
    if not text:
        return None
    if kind == "TASK_RETRY_SCHEDULED" and text.isdecimal():
        return {"delay_ms": int(text)}
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if isinstance(found, dict):
            return {name: value for name, value in found.items() if name not in _OWN_AFFAIRS}
    return {"reason": text}
