"""The API of the audit."""

from __future__ import annotations

from flask import Blueprint, Response

from dtq.audit import AuditFilter
from dtq.web.engine import engine
from dtq.web.http import answer
from dtq.web.operation import Operation, operation
from dtq.web.queries import AuditQuery, read_query, unix_seconds
from dtq.web.schemas import AuditPageAnswer

bp = Blueprint("audit", __name__, url_prefix="/api/v1/audit")


@bp.get("")
@operation(Operation(need="read", tag="audit", query=AuditQuery, answers={200: AuditPageAnswer}))
def index() -> Response:
    """List what operators did, newest first. A page may be short, even empty, and still have a next_cursor."""
    query = read_query(AuditQuery)
    wanted = AuditFilter(
        actor=query.actor,
        action=query.action,
        target=query.target,
        since=unix_seconds(query.since),
        until=unix_seconds(query.until),
    )
    page = engine().client.queries.audit(wanted, query.limit, query.cursor)
    return answer({"entries": [entry.as_json() for entry in page.entries], "next_cursor": page.next_cursor})
