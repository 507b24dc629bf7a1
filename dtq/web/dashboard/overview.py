"""The first page: whether all is well, what needs attention, and the last hour at a glance."""

from __future__ import annotations

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
