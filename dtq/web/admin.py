"""The API of operators: queues and workers."""

from __future__ import annotations

import re

from flask import Blueprint, Response

from dtq.bulk import BulkWish
from dtq.control import Command
from dtq.errors import QueueNotFound, WorkerNotFound
from dtq.web.auth import actor
from dtq.web.bulk import carry_out
from dtq.web.engine import engine
from dtq.web.http import answer
from dtq.web.operation import Operation, operation
from dtq.web.queries import QUEUE, BulkOptions, Reason, read_options
from dtq.web.schemas import BulkAnswer, CommandAnswer, PausedAnswer, QueueAnswer, QueueList, WorkerList

bp = Blueprint("admin", __name__, url_prefix="/api/v1")

_QUEUE = re.compile(QUEUE)
_WORKER = re.compile(r"[A-Za-z0-9_.:-]{1,150}")
_COMMAND = Operation(
    need="destructive",
    tag="workers",
    body=Reason,
    body_required=False,
    answers={202: CommandAnswer},
    problems=(404,),
)


@bp.get("/queues")
@operation(Operation(need="read", tag="queues", answers={200: QueueList}))
def queues() -> Response:
    """List the queues with their counts."""
    return answer({"queues": [queue.as_json() for queue in engine().client.queries.queues()]})


@bp.get("/queues/<queue>")
@bp.get("/queue/<queue>")
@operation(Operation(need="read", tag="queues", answers={200: QueueAnswer}, problems=(404,)))
def queue(queue: str) -> Response:
    """Show one queue with its counts; one that was never used is empty."""
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
    engine().client.pause(_checked_queue(queue), actor=actor(options.reason))
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
    options = read_options(Reason)
    engine().client.resume(_checked_queue(queue), actor=actor(options.reason))
    return answer({"queue": queue, "paused": False})


@bp.post("/queues/<queue>/purge")
@bp.post("/queue/<queue>/purge")
@operation(
    Operation(
        need="destructive",
        tag="queues",
        body=BulkOptions,
        body_required=False,
        answers={200: BulkAnswer, 202: BulkAnswer},
        answer_headers={202: ("Location",)},
        problems=(404, 429),
    )
)
def purge(queue: str) -> Response:
    """Cancel all that waits in a queue, or for it; what runs goes on. 200 when all is done, 202 when it goes on."""
    name, options = _checked_queue(queue), read_options(BulkOptions)
    return carry_out(BulkWish(action="queue.purge", queue=name), options)


@bp.get("/workers")
@operation(Operation(need="read", tag="workers", answers={200: WorkerList}))
def workers() -> Response:
    """List the live workers."""
    return answer({"workers": [info.as_json() for info in engine().client.queries.workers()]})


@bp.post("/workers/<worker_id>/quiet")
@operation(_COMMAND)
def quiet(worker_id: str) -> Response:
    """Tell a worker to claim nothing more; what it runs goes on."""
    return _tell(worker_id, "quiet")


@bp.post("/workers/<worker_id>/stop")
@operation(_COMMAND)
def stop(worker_id: str) -> Response:
    """Tell a worker to drain and to end."""
    return _tell(worker_id, "stop")


def _tell(worker_id: str, command: Command) -> Response:
    options = read_options(Reason)
    engine().client.tell_worker(_checked_worker(worker_id), command, actor=actor(options.reason))
    return answer({"worker_id": worker_id, "command": command}, 202)


def _checked_queue(queue: str) -> str:
    if not _QUEUE.fullmatch(queue):
        raise QueueNotFound("there can be no such queue: names are 1 to 64 of a-z 0-9 _ -")
    return queue


def _checked_worker(worker_id: str) -> str:
    if not _WORKER.fullmatch(worker_id):
        raise WorkerNotFound("there can be no such worker")
    return worker_id
