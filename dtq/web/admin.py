"""The API of operators: queues, workers, dead letters."""

from __future__ import annotations

import re

from flask import Blueprint, Response

from dtq.web.auth import actor
from dtq.web.engine import engine
from dtq.web.errors import QueueNotFound
from dtq.web.http import answer, checked_task_id
from dtq.web.operation import Operation, operation
from dtq.web.queries import QUEUE, NoQuery, Reason, RequeueOptions, read_options, read_query
from dtq.web.schemas import PausedAnswer, QueueAnswer, QueueList, TaskAnswer, WorkerList

bp = Blueprint("admin", __name__, url_prefix="/api/v1")

_QUEUE = re.compile(QUEUE)


@bp.get("/queues")
@operation(Operation(need="read", tag="queues", answers={200: QueueList}))
def queues() -> Response:
    """List the queues with their counts."""
    read_query(NoQuery)
    return answer({"queues": [queue.as_json() for queue in engine().client.queries.queues()]})


@bp.get("/queues/<queue>")
@bp.get("/queue/<queue>")
@operation(Operation(need="read", tag="queues", answers={200: QueueAnswer}, problems=(404,)))
def queue(queue: str) -> Response:
    """Show one queue with its counts; one that was never used is empty."""
    read_query(NoQuery)
    return answer(engine().client.queries.queue(_checked_queue(queue)).as_json())


@bp.post("/queues/<queue>/pause")
@bp.post("/queue/<queue>/pause")
@operation(
    Operation(
        need="destructive", tag="queues", body=Reason, body_required=False, answers={200: PausedAnswer}, problems=(404,)
    )
)
def pause(queue: str) -> Response:
    """Pause a queue: nothing new starts, what runs goes on. A queue may be paused before its first task."""
    options = read_options(Reason)
    engine().client.broker.pause(_checked_queue(queue), actor(), options.reason)
    return answer({"queue": queue, "paused": True})


@bp.post("/queues/<queue>/resume")
@bp.post("/queue/<queue>/resume")
@operation(
    Operation(
        need="destructive", tag="queues", body=Reason, body_required=False, answers={200: PausedAnswer}, problems=(404,)
    )
)
def resume(queue: str) -> Response:
    """Resume a paused queue; its tasks go on in the order they had."""
    read_options(Reason)
    engine().client.broker.resume(_checked_queue(queue), actor())
    return answer({"queue": queue, "paused": False})


@bp.get("/workers")
@operation(Operation(need="read", tag="workers", answers={200: WorkerList}))
def workers() -> Response:
    """List the live workers."""
    read_query(NoQuery)
    return answer({"workers": [info.as_json() for info in engine().client.queries.workers()]})


@bp.post("/dlq/<task_id>/requeue")
@operation(
    Operation(
        need="destructive",
        tag="dead letters",
        body=RequeueOptions,
        body_required=False,
        answers={202: TaskAnswer},
        problems=(404, 409),
    )
)
def requeue(task_id: str) -> Response:
    """Queue a dead letter again: its attempts start anew, its history is kept."""
    options = read_options(RequeueOptions)
    task = engine().client.requeue(
        checked_task_id(task_id), actor=actor(), queue=options.queue, priority=options.priority
    )
    return answer(task.as_json(), 202)


def _checked_queue(queue: str) -> str:
    if not _QUEUE.fullmatch(queue):
        raise QueueNotFound("there can be no such queue: names are 1 to 64 of a-z 0-9 _ -")
    return queue
