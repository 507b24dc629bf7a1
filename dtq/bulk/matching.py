"""Counting the tasks that a bulk job would be about."""

from __future__ import annotations

from dtq.queries import MAX_PAGE, Queries
from dtq.taskfilter import TaskFilter

MOST_COUNTED = 10_000
"""How many records a filter without an index looks at to be counted."""


def count_matching(queries: Queries, wanted: TaskFilter, most: int = MOST_COUNTED) -> tuple[int, bool]:
    """Return how many tasks fit that have not ended, and whether there are no more.

    Indexes tell it exactly; a filter without one looks at the newest `most` records, give or take a page.
    """
    live = wanted.live()
    if live is None:
        return 0, True
    if live.indexed:
        return queries.count_indexed(live), True
    number, looked_at, cursor = 0, 0, None
    while looked_at < most:
        page = queries.tasks(live, MAX_PAGE, cursor)
        number, looked_at, cursor = number + len(page.tasks), looked_at + page.looked_at, page.next_cursor
        if cursor is None:
            return number, True
    return number, False
