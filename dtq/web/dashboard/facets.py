"""What the tasks that fit have in common: the types, queues, workers and errors by which a list can be narrowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from dtq.model import Task
from dtq.queries import MAX_PAGE, Page
from dtq.taskfilter import TaskFilter
from dtq.taskquery import TaskQuery
from dtq.web.dashboard.reads import Reads

SHOWN = 8

_MEASURES: Sequence[tuple[str, str, Callable[[Task], str | None]]] = (
    ("Type", "type", lambda task: task.task_type),
    ("Queue", "queue", lambda task: task.queue),
    ("Error", "class", lambda task: (task.error or {}).get("class")),
    ("Worker", "worker", lambda task: task.worker_id),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """One thing by which a list can be narrowed."""

    name: str
    values: Sequence[tuple[str, int, str]]
    """What there is, how often, and the query that shows it alone; the most frequent first."""
    left_out: int
    """How many rarer ones there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facets:
    """All of them."""

    counted: int
    which: Literal["all", "the newest", "these"]
    """Of those that fit, which were counted. These: those of the page."""
    facets: Sequence[Facet]


def facets(reads: Reads, query: TaskQuery, shown: Page, *, first: bool) -> Facets:
    """Count over the newest tasks that fit: MAX_PAGE of them at most.

    shown: the page of the list; it is enough when it is all there is, and must be when it was much to look through.
    first: whether it is the first one.
    """
    found = shown
    which: Literal["all", "the newest", "these"] = "these"
    if shown.looked_at < MAX_PAGE and not (first and shown.next_cursor is None):
        found, first = reads.client.queries.tasks(TaskFilter.of(query, reads.now), MAX_PAGE), True
    if first:
        which = "all" if found.next_cursor is None else "the newest"
    made = []
    for name, key, measure in _MEASURES:
        counts = Counter(value for value in map(measure, found.tasks) if value)
        values = [(value, number, query.having(key, value)) for value, number in counts.most_common(SHOWN)]
        made.append(Facet(name=name, values=values, left_out=len(counts) - len(values)))
    return Facets(counted=len(found.tasks), which=which, facets=made)
