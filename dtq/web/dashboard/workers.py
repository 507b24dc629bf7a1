"""The workers, and what each runs."""

from __future__ import annotations

from dtq.model import Task
from dtq.queries import MAX_PAGE
from dtq.states import Status
from dtq.taskfilter import TaskFilter
from dtq.web.dashboard.page import Asked, Context, page
from dtq.web.dashboard.reads import Reads

TASKS_SHOWN = 6
"""Of one worker."""


@page("/workers", area="workers", parts={"worker-rows": "workers/_rows.html"})
def index(reads: Reads, asked: Asked) -> Context:
    """Show every live worker."""
    running: dict[str, list[Task]] = {}
    page_of_tasks = reads.client.queries.tasks(TaskFilter(status=Status.RUNNING), MAX_PAGE)
    for task in page_of_tasks.tasks:
        running.setdefault(task.worker_id or "", []).append(task)
    for tasks in running.values():
        tasks.sort(key=lambda task: task.started_at or 0.0)
    return {
        "title": "Workers",
        "workers": reads.workers,
        "running": running,
        "shown": TASKS_SHOWN,
        "leader": reads.client.queries.leader(),
        "slots": sum(worker.concurrency for worker in reads.workers if worker.state == "running"),
        "busy": sum(worker.running for worker in reads.workers),
        "waiting": reads.totals[Status.QUEUED],
    }
