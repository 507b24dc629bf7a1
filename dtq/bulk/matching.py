"""Counting the tasks that a bulk job would be about."""

from __future__ import annotations

from collections.abc import Sequence

from dtq.model import Task
from dtq.queries import MAX_PAGE, Queries
from dtq.taskfilter import TaskFilter

MOST_COUNTED = 2_000
"""How many records a filter without an index looks at to be counted: about a tenth of a second."""


def count_matching(queries: Queries, wanted: TaskFilter, samples: int = 0) -> tuple[int, Sequence[Task], bool]:
    """Return how many tasks fit that have not ended, the newest few, and whether there are no more.

    Indexes tell it exactly; a filter without one looks at the newest MOST_COUNTED records, give or take a page.
    """
    live = wanted.live()
    if live is None:
        return 0, (), True
    if live.indexed:
        return queries.count_indexed(live), queries.tasks(live, samples).tasks if samples else (), True
    shown: list[Task] = []
    number, looked_at, cursor = 0, 0, None
    while looked_at < MOST_COUNTED:
        page = queries.tasks(live, MAX_PAGE, cursor)
        number, looked_at, cursor = number + len(page.tasks), looked_at + page.looked_at, page.next_cursor
        shown += page.tasks[: samples - len(shown)]
        if cursor is None:
            return number, shown, True
    return number, shown, False
