"""The audit: what operators did, as the scripts that did it have written it down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dtq.keys import Keys
from dtq.model import rfc3339
from dtq.redisio import Server
from dtq.streams import newest_id, oldest_id

ENTRIES_A_READ = 200
MOST_LOOKED_AT = 2_000
"""How many entries one page looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which entries a page shows; None means any."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since: float | None = None
    """Seconds since the epoch, inclusive."""
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One thing that somebody did."""

    entry_id: str
    at: float
    actor: str
    action: str
    """Such as task.cancel, queue.pause, dlq.requeue."""
    target: str
    """The id of a task, a worker or a bulk job, or the name of a queue."""
    reason: str
    request_id: str
    count: int
    """How many were changed by it."""
    detail: str

    def as_json(self) -> dict[str, Any]:
        """Return the entry as an answer shows it."""
        return {
            "id": self.entry_id,
            "time": rfc3339(self.at),
            "actor": self.actor,
            "action": self.action,
            "target": self.target,
            "reason": self.reason,
            "request_id": self.request_id,
            "count": self.count,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """A part of the audit, newest first."""

    entries: Sequence[AuditEntry]
    next_cursor: str | None
    """Where the next page begins; None at the end."""


def read_audit(server: Server, keys: Keys, wanted: AuditFilter, limit: int, cursor: str | None) -> AuditPage:
    """Return a page of at most `limit` entries; it may be short, even empty, and still have a cursor.

    Raises InvalidTask for a cursor that is none, RedisUnavailable.
    """
    latest, earliest = newest_id(wanted.until, cursor), oldest_id(wanted.since)
    found: list[AuditEntry] = []
    for _ in range(0, MOST_LOOKED_AT, ENTRIES_A_READ):
        part = server.call("XREVRANGE", keys.audit(), latest, earliest, "COUNT", ENTRIES_A_READ)
        for raw_id, fields in part:
            entry = _entry(raw_id.decode(), fields)
            if _accepts(wanted, entry):
                found.append(entry)
                if len(found) == limit:
                    return AuditPage(entries=found, next_cursor=entry.entry_id)
        if len(part) < ENTRIES_A_READ:
            return AuditPage(entries=found, next_cursor=None)
        latest = f"({part[-1][0].decode()}"
    return AuditPage(entries=found, next_cursor=latest[1:])


def _entry(entry_id: str, fields: Sequence[bytes]) -> AuditEntry:
    text = {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, value in zip(fields[::2], fields[1::2], strict=True)
    }
    number = text.get("count", "")
    return AuditEntry(
        entry_id=entry_id,
        at=int(entry_id.partition("-")[0]) / 1000,
        actor=text.get("actor", ""),
        action=text.get("action", ""),
        target=text.get("target", ""),
        reason=text.get("reason", ""),
        request_id=text.get("request", ""),
        count=int(number) if number.isascii() and number.isdigit() else 0,
        detail=text.get("detail", ""),
    )


def _accepts(wanted: AuditFilter, entry: AuditEntry) -> bool:
    return (
        (wanted.actor is None or entry.actor == wanted.actor)
        and (wanted.action is None or entry.action == wanted.action)
        and (wanted.target is None or entry.target == wanted.target)
    )
