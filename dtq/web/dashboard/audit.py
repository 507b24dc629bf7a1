"""Who did what."""

from __future__ import annotations

from dtq.audit import AuditFilter
from dtq.errors import InvalidTask
from dtq.web.dashboard.page import Asked, Context, page
from dtq.web.dashboard.reads import Reads

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
    return {"title": "Audit", "entries": found.entries, "next_cursor": found.next_cursor, "given": given,
            "cursor": cursor}  # fmt: skip
