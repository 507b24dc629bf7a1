"""The dead letters: found by a query, requeued and given up one by one or many at once."""

from __future__ import annotations

from dtq.deadletters import DeadFilter, DeadPage
from dtq.errors import InvalidTask
from dtq.taskquery import TaskQuery, parse
from dtq.web.dashboard.page import Asked, Context, page
from dtq.web.dashboard.reads import Reads

A_PAGE = 50
_NO_FILTER = ("status", "tag", "worker", "priority")


@page("/dead", area="dead", parts={"newer": "dead/_newer.html"})
def index(reads: Reads, asked: Asked) -> Context:
    """Show dead letters, those that died last first."""
    query = parse_dead(asked.get("q", ""))
    cursor = asked.get("cursor") or None
    try:
        found = find(reads, query, cursor)
    except InvalidTask:  # no cursor of ours: begin at the beginning
        cursor, found = None, find(reads, query, None)
    return {
        "title": "Dead letters",
        "path": "/dead",
        "example": 'type:email.welcome class:TimeoutError error:"refused" reason:exhausted age<1h',
        "query": query,
        "letters": found.letters,
        "next_cursor": found.next_cursor,
        "cursor": cursor,
        "size": reads.client.queries.dead_letters.size(),
        "most": reads.client.settings.dlq_maxlen,
        "newer": newer(found, asked) if cursor is None else 0,
    }


def newer(found: DeadPage, asked: Asked) -> int:
    """Return how many that fit died after the first one that a tab shows; 0 when that one is no longer among them."""
    first = asked.get("_first", "")
    ids = [letter.task_id for letter in found.letters]
    return len(ids) if first == "0" else ids.index(first) if first in ids else 0


def find(reads: Reads, query: TaskQuery, cursor: str | None) -> DeadPage:
    """Return a page of what a query finds. Raises InvalidTask for a cursor that is none."""
    return reads.client.queries.dead_letters.page(dead_filter(query, reads.now), A_PAGE, cursor)


def parse_dead(text: str) -> TaskQuery:
    """Read a query for dead letters: what a task may have and a dead letter has not, is refused."""
    query = parse(text)
    for key in _NO_FILTER:
        query.refuse(key, "dead letters are not filtered by this")
    if query.task_type is not None and "*" in query.task_type:
        query.refuse("type", "dead letters are filtered by a whole type, without *")
        query.task_type = None
    return query


def dead_filter(query: TaskQuery, now: float) -> DeadFilter:
    """Return what a query asks of dead letters. A word alone is one of the error. now: Redis's clock, for ages."""
    return DeadFilter(
        queue=query.queue,
        task_type=query.task_type,
        reason=query.reason,
        error_class=query.error_class,
        error=query.error or " ".join(query.words) or None,
        since=None if query.younger_than_s is None else now - query.younger_than_s,
        until=None if query.older_than_s is None else now - query.older_than_s,
    )
