"""How long tasks took: percentiles over the newest that succeeded, read from their records; nothing is kept for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dtq.model import Task
from dtq.states import Status
from dtq.taskfilter import TaskFilter
from dtq.web.dashboard.reads import Reads

LOOKED_AT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How the lengths of something are spread, in seconds."""

    what: str
    p50: float
    p95: float
    most: float


def latencies(reads: Reads, queue: str) -> tuple[int, Sequence[Spread]]:
    """Return how many tasks were looked at, and how they waited and ran; nothing of none."""
    tasks = reads.client.queries.tasks(TaskFilter(status=Status.SUCCEEDED, queue=queue), LOOKED_AT).tasks
    whole = [task for task in tasks if task.started_at is not None and task.finished_at is not None]
    if not whole:
        return 0, ()
    told = (("Waited", _waited), ("Ran", _ran), ("From submitting to the end", _all_told))
    return len(whole), [spread(what, [max(0.0, measure(task)) for task in whole]) for what, measure in told]


def spread(what: str, values: Sequence[float]) -> Spread:
    """Return the spread of one value or more; a percentile is one of them (the nearest rank)."""
    ordered = sorted(values)
    return Spread(what=what, p50=_rank(ordered, 0.5), p95=_rank(ordered, 0.95), most=ordered[-1])


def _rank(ordered: Sequence[float], part: float) -> float:
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def _waited(task: Task) -> float:
    return (task.started_at or 0.0) - (task.available_at or task.created_at)


def _ran(task: Task) -> float:
    return (task.finished_at or 0.0) - (task.started_at or 0.0)


def _all_told(task: Task) -> float:
    return (task.finished_at or 0.0) - task.created_at
