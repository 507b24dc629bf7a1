"""All queues, and one queue."""

from __future__ import annotations

from dtq.attention import starved_bands
from dtq.errors import QueueNotFound
from dtq.keys import QUEUE_NAME
from dtq.states import BANDS
from dtq.web.dashboard.latency import latencies
from dtq.web.dashboard.overview import minutes
from dtq.web.dashboard.page import Asked, Context, page
from dtq.web.dashboard.reads import Reads

A_PAGE = 30
"""Queues on one page."""


@page("/queues", area="queues", parts={"queue-rows": "queues/_rows.html"})
def index(reads: Reads, asked: Asked) -> Context:
    """Show every queue."""
    number = max(1, asked.get("page", 1, type=int))
    queues = reads.queues
    pages = max(1, -(-len(queues) // A_PAGE))
    shown = queues[(number - 1) * A_PAGE : number * A_PAGE]
    served: dict[str, int] = {}
    for worker in reads.workers:
        for queue in worker.queues:
            served[queue] = served.get(queue, 0) + 1
    return {
        "title": "Queues",
        "queues": shown,
        "number": number,
        "pages": pages,
        "all": len(queues),
        "hour": reads.client.charts.hour([queue.queue for queue in shown]),
        "served": served,
        "any_workers": bool(reads.workers),
    }


QUEUE_PARTS = {"head": "queues/_head.html", "plots": "queues/_plots.html", "bands": "queues/_bands.html",
               "took": "queues/_took.html", "types": "queues/_types.html",
               "workers": "queues/_workers.html"}  # fmt: skip


@page("/queues/<queue>", area="queues", name="show", parts=QUEUE_PARTS)
def show(reads: Reads, asked: Asked, queue: str) -> Context:
    """Show one queue; one that was never used is empty."""
    if not QUEUE_NAME.fullmatch(queue):
        raise QueueNotFound("there can be no such queue: names are 1 to 64 of a-z 0-9 _ -")
    info = reads.client.queries.queue(queue)
    hour = reads.client.charts.hour([queue])
    starved = starved_bands(info)
    took_of, took = latencies(reads, queue)
    return {
        "title": queue,
        "queue": info,
        "hour": hour,
        "waiting": _with_now(hour.most("waiting", queue=queue), sum(info.waiting_by_priority.values())),
        "oldest": _with_now(hour.most("oldest", queue=queue), round(info.oldest_waiting_s or 0)),
        "bands": [(band, info.waiting_by_priority[band], info.oldest_waiting_by_priority_s[band]) for band in BANDS],
        "starved": starved,
        "types": list(reads.client.charts.by_type(queue).items())[:20],
        "took": took,
        "took_of": took_of,
        "workers": [worker for worker in reads.workers if queue in worker.queues],
        "most": reads.client.settings.max_queue_depth,
    }


@page("/queues/<queue>/hour", area="queues", name="hour", template="overview/hour.html")
def hour_table(reads: Reads, asked: Asked, queue: str) -> Context:
    """Show the last hour of a queue as numbers."""
    if not QUEUE_NAME.fullmatch(queue):
        raise QueueNotFound("there can be no such queue: names are 1 to 64 of a-z 0-9 _ -")
    hour = reads.client.charts.hour([queue])
    return {"title": f"The last hour of {queue}", "back": f"/queues/{queue}", "minutes": minutes(hour, queue)}


def _with_now(values: list[int | None], now: int) -> list[int | None]:
    """The running minute shows what is there now: the look of the leader may be seconds old."""
    return [*values[:-1], now]
