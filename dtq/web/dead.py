"""The API of dead letters."""

from __future__ import annotations

from flask import Blueprint, Response

from dtq.web.auth import actor
from dtq.web.engine import engine
from dtq.web.http import answer, checked_task_id
from dtq.web.operation import Operation, operation
from dtq.web.queries import Reason, RequeueOptions, read_options
from dtq.web.schemas import TaskAnswer

bp = Blueprint("dead", __name__, url_prefix="/api/v1/dlq")


@bp.post("/<task:task_id>/requeue")
@operation(
    Operation(
        need="destructive",
        tag="dead letters",
        body=RequeueOptions,
        body_required=False,
        answers={202: TaskAnswer},
        problems=(404, 409, 429),
    )
)
def requeue(task_id: str) -> Response:
    """Queue a dead letter again: its attempts start anew, its history is kept."""
    options = read_options(RequeueOptions)
    task = engine().client.requeue(
        checked_task_id(task_id), actor=actor(options.reason), queue=options.queue, priority=options.priority
    )
    return answer(task.as_json(), 202)


@bp.delete("/<task:task_id>")
@operation(
    Operation(
        need="destructive",
        tag="dead letters",
        body=Reason,
        body_required=False,
        answers={200: TaskAnswer},
        problems=(404, 409),
    )
)
def discard(task_id: str) -> Response:
    """Give a dead letter up: its entry goes, its task is kept for its retention, marked as discarded."""
    options = read_options(Reason)
    task = engine().client.discard(checked_task_id(task_id), actor=actor(options.reason))
    return answer(task.as_json())
