"""What the stream of events still holds, a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dtq.events.model import START, Event, EventFilter, EventId, event_of, lines_of
from dtq.keys import Keys
from dtq.redisio import Server
from dtq.settings import Settings

MAX_PAGE = 1000
MOST_LOOKED_AT = 20_000
"""Events that are looked at for one page: a filter has no index. The page then ends early and says so (`more`)."""
_ENTRIES_A_READ = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """Some of the events, oldest first."""

    events: Sequence[Event]
    last: EventId
    """Where the next page begins (its `since`): everything up to here was looked at."""
    more: bool
    """Whether there was more to look at; without it, `last` was the newest event."""
    gap: bool
    """Whether events between `since` and this page are gone, or may be."""


class EventHistory:
    """Reads of one namespace's events. Safe to use from any thread. Every method raises RedisUnavailable."""

    def __init__(self, server: Server, settings: Settings) -> None:
        self._server = server
        self._key = Keys(settings.namespace).events()
        self._maxlen = settings.events_maxlen

    def newest(self, wanted: EventFilter, limit: int) -> HistoryPage:
        """Return the last events. limit: 1 to MAX_PAGE."""
        limit = min(max(limit, 1), MAX_PAGE)
        found: list[Event] = []
        last: EventId | None = None
        before, looked_at = "+", 0
        while looked_at < MOST_LOOKED_AT and len(found) < limit:
            entries = self._server.call("XREVRANGE", self._key, before, "-", "COUNT", _ENTRIES_A_READ)
            for entry in entries:
                lines = list(lines_of(entry))
                if last is None and lines:
                    last = lines[-1][0]
                found += (event for event in (event_of(*line) for line in reversed(lines)) if wanted.accepts(event))
                looked_at += len(lines)
            if len(entries) < _ENTRIES_A_READ:
                break
            before = f"({entries[-1][0].decode()}"
        return HistoryPage(events=found[limit - 1 :: -1], last=last or START, more=False, gap=False)

    def after(self, since: EventId, wanted: EventFilter, limit: int) -> HistoryPage:
        """Return what came after an event. limit: 1 to MAX_PAGE."""
        limit = min(max(limit, 1), MAX_PAGE)
        gap = self.trimmed() if since.is_start else False
        found: list[Event] = []
        last, looked_at = since, 0
        while looked_at < MOST_LOOKED_AT:
            entries = self._server.call("XRANGE", self._key, last.entry, "+", "COUNT", _ENTRIES_A_READ)
            if not last.is_start and not _begins_at(entries, last):
                gap = True
            for entry in entries:
                for place, parts in lines_of(entry):
                    if place <= last:
                        continue
                    last = place
                    looked_at += 1
                    event = event_of(place, parts)
                    if wanted.accepts(event):
                        found.append(event)
                        if len(found) == limit:
                            return HistoryPage(events=found, last=last, more=True, gap=gap)
            if len(entries) < _ENTRIES_A_READ:
                return HistoryPage(events=found, last=last, more=False, gap=gap)
            if not _begins_at(entries[-1:], last):  # it holds nothing that could be read
                last = _end_of(entries[-1])
        return HistoryPage(events=found, last=last, more=True, gap=gap)

    def holds(self, place: EventId) -> tuple[bool, EventId]:
        """Return whether the stream still has the entry of an event, and the end of its newest entry.

        Without that entry, nobody can tell that everything after it is still there.
        """
        entry, newest = self._server.pipeline(
            [
                ("XRANGE", self._key, place.entry, place.entry, "COUNT", 1),
                ("XREVRANGE", self._key, "+", "-", "COUNT", 1),
            ]
        )
        return bool(entry), _end_of(newest[0]) if newest else START

    def end(self) -> EventId:
        """Return the end of the newest entry; the start when there is none."""
        newest = self._server.call("XREVRANGE", self._key, "+", "-", "COUNT", 1)
        return _end_of(newest[0]) if newest else START

    def trimmed(self) -> bool:
        """Whether the stream may have been trimmed: that never makes it shorter than its bound."""
        return bool(self._server.call("XLEN", self._key) >= self._maxlen)


def _begins_at(entries: Sequence[Any], place: EventId) -> bool:
    return bool(entries) and entries[0][0].decode() == place.entry


def _end_of(entry: Sequence[Any]) -> EventId:
    return EventId.parse(entry[0].decode())
