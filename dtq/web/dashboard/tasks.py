"""The list of tasks: found by a query that stands in the URL."""

from __future__ import annotations

from collections.abc import Mapping

from flask import redirect
from werkzeug.wrappers import Response

from dtq.errors import InvalidTask
from dtq.keys import TASK_ID
from dtq.queries import Page as TaskPage
from dtq.states import Status
from dtq.taskfilter import TaskFilter
from dtq.taskquery import TaskQuery, parse
from dtq.web.dashboard.facets import facets
from dtq.web.dashboard.page import Asked, Context, page
from dtq.web.dashboard.reads import Reads

A_PAGE = 50
CHIPS = (
    Status.RUNNING,
    Status.QUEUED,
    Status.RETRYING,
    Status.PENDING,
    Status.SUCCEEDED,
    Status.DEAD_LETTERED,
    Status.FAILED,
    Status.CANCELLED,
    Status.EXPIRED,
)


@page("/tasks", area="tasks", parts={"chips": "tasks/_chips.html", "newer": "tasks/_newer.html"}, row="tasks/_row.html")
def index(reads: Reads, asked: Asked) -> Context | Response:
    """Show the tasks that fit, newest first. A query that is the id of a task leads to it."""
    query = parse(asked.get("q", ""))
    if TASK_ID.fullmatch(query.text):
        return redirect(f"/tasks/{query.text}", 303)
    cursor = asked.get("cursor") or None
    try:
        found = find(reads, query, cursor)
    except InvalidTask:  # no cursor of ours: begin at the beginning
        cursor, found = None, find(reads, query, None)
    wanted = TaskFilter.of(query, reads.now)
    counts = reads.client.queries.counts(query.queue) if query.queue else reads.totals
    return {
        "title": "Tasks",
        "path": "/tasks",
        "example": 'status:dead_lettered type:email.* error:"refused" age>10m tag:x',
        "query": query,
        "tasks": found.tasks,
        "next_cursor": found.next_cursor,
        "looked_at": found.looked_at,
        "indexed": wanted.indexed,
        "matching": 0 if query.problems else _matching(wanted, found, counts, whole=cursor is None),
        "cursor": cursor,
        "facets": lambda: facets(
            reads, query, found, first=cursor is None
        ),  # counted for the page alone, not for each push
        "newer": newer(found, asked) if cursor is None else 0,
        "chips": [(status, counts[status], _toggled(query, status), status in query.statuses) for status in CHIPS],
        "all": sum(counts.values()),
        "retention_s": reads.client.settings.task_retention_s,
        "in_all": sum(counts[status] for status in query.statuses or Status),
    }


def _matching(wanted: TaskFilter, found: TaskPage, counts: Mapping[Status, int], *, whole: bool) -> int | None:
    """Return how many fit that have not ended; None when that is not known without looking for them.

    whole: whether `found` is the first page.
    """
    live = wanted.live()
    if live is None:
        return 0
    if whole and found.next_cursor is None:
        return sum(not task.terminal for task in found.tasks)
    if wanted.indexed and wanted.created_after is None and wanted.created_before is None:
        return sum(counts[status] for status in live.statuses)
    return None


def find(reads: Reads, query: TaskQuery, cursor: str | None, limit: int = A_PAGE) -> TaskPage:
    """Return a page of what a query finds. Raises InvalidTask for a cursor that is none."""
    return reads.client.queries.tasks(TaskFilter.of(query, reads.now), limit, cursor)


def newer(found: TaskPage, asked: Asked) -> int:
    """Return how many tasks fit that are newer than the first one that a tab shows."""
    first = asked.get("_first")
    if not first:
        return 0
    return next((at for at, task in enumerate(found.tasks) if task.task_id <= first), len(found.tasks))


def _toggled(query: TaskQuery, status: Status) -> str:
    """Return the query with a status chosen alone, or, where it is, with none."""
    return query.having("status", "" if query.statuses == (status,) else status.value)
