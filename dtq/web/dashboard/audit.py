"""Who did what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dtq.audit import AuditEntry, AuditFilter
from dtq.errors import InvalidTask
from dtq.keys import QUEUE_NAME, TASK_ID, TOPIC_NAME
from dtq.web.dashboard.page import Asked, Context, page
from dtq.web.dashboard.reads import Reads
from dtq.web.dashboard.words import facts

A_PAGE = 50
FIELDS = ("actor", "action", "target")


@page("/audit", area="audit")
def index(reads: Reads, asked: Asked) -> Context:
    """Show what operators did, the newest first."""
    given = {name: asked.get(name, "").strip() for name in FIELDS}
    wanted = AuditFilter(actor=given["actor"] or None, action=given["action"] or None, target=given["target"] or None)
    cursor = asked.get("cursor") or None
    try:
        found = reads.client.queries.audit(wanted, A_PAGE, cursor)
    except InvalidTask:  # no cursor of ours: begin at the beginning
        cursor, found = None, reads.client.queries.audit(wanted, A_PAGE)
    shown = [(entry, *told(entry)) for entry in found.entries]
    return {"title": "Audit", "entries": shown, "next_cursor": found.next_cursor, "given": given, "cursor": cursor}


def told(entry: AuditEntry) -> tuple[str, str]:
    """Return what an entry tells beyond its fields, and the address of what it is about; empty for none."""
    detail = _object(entry.detail)
    if detail is None:
        return entry.detail, _address(entry)
    bulk_id = detail.pop("bulk_id", None)
    detail = {name: value for name, value in detail.items() if value != 0 and (name, value) != ("state", "done")}
    return facts(detail), f"/bulk/{bulk_id}" if bulk_id == entry.target else _address(entry)


def _address(entry: AuditEntry) -> str:
    kind, target = entry.action.partition(".")[0], entry.target
    if kind in ("task", "dlq") and TASK_ID.fullmatch(target):
        return f"/tasks/{target}"
    if kind == "mq":
        queue, _, topic = target.partition("/")
        return f"/messages/{target}" if QUEUE_NAME.fullmatch(queue) and TOPIC_NAME.fullmatch(topic) else ""
    return f"/queues/{target}" if kind == "queue" and QUEUE_NAME.fullmatch(target) else ""


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return dict(value) if isinstance(value, Mapping) else None
