"""The first page: whether all is well, what needs attention, and the last hour at a glance."""

from __future__ import annotations

from dtq.charts import CAME_IN, ENDED_BADLY, ENDED_WELL, Hour
from dtq.web.dashboard.failures import newest_groups
from dtq.web.dashboard.page import Asked, Context, page
from dtq.web.dashboard.reads import Reads

PARTS = {
    "verdict": "overview/_verdict.html",
    "tiles": "overview/_tiles.html",
    "queues": "overview/_queues.html",
    "workers": "overview/_workers.html",
    "errors": "overview/_errors.html",
}
ERRORS_LOOKED_AT = 200


@page("/hour", area="overview", name="hour")
def hour_table(reads: Reads, asked: Asked) -> Context:
    """Show the last hour of all queues as numbers: for who cannot see the charts."""
    return {"title": "The last hour", "back": "/", "minutes": minutes(reads.hour)}


def minutes(hour: Hour, queue: str | None = None) -> list[tuple[int, ...]]:
    """Return the minutes of an hour, the last first: epoch seconds / 60, then what the charts draw."""
    counted = [hour.counts(*whats, queue=queue) for whats in (CAME_IN, ENDED_WELL, ("retried",), ENDED_BADLY)]
    seen = [hour.most(what, queue=queue) for what in ("waiting", "running", "oldest")]
    numbers = range(hour.first_minute, hour.first_minute + len(hour.gauges))
    return list(zip(numbers, *counted, *seen, strict=True))[::-1]


@page("/", area="overview", parts=PARTS)
def index(reads: Reads, asked: Asked) -> Context:
    """Show how it is going."""
    hour = reads.hour
    return {
        "title": "Overview",
        "findings": reads.findings,
        "queues": reads.queues,
        "workers": reads.workers,
        "totals": reads.totals,
        "hour": hour,
        "errors": newest_groups(reads, ERRORS_LOOKED_AT, 5),
        "slots": sum(worker.concurrency for worker in reads.workers if worker.state == "running"),
        "oldest_s": max((queue.oldest_waiting_s or 0.0 for queue in reads.queues), default=0.0),
    }
