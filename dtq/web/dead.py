"""The API of dead letters."""

from __future__ import annotations

from flask import Blueprint, Response

from dtq.bulk import Action, BulkWish
from dtq.bulk.jobs import MAX_IDS
from dtq.deadletters import DeadFilter
from dtq.errors import InvalidRequest
from dtq.strictjson import fault
from dtq.web.auth import actor
from dtq.web.bulk import carry_out
from dtq.web.engine import engine
from dtq.web.http import answer, checked_task_id
from dtq.web.operation import Operation, operation
from dtq.web.queries import (
    DeadBulkBody,
    DeadListQuery,
    DeadPurgeBody,
    DeadRequeueBody,
    Reason,
    RequeueOptions,
    read_options,
    read_query,
)
from dtq.web.schemas import BulkAnswer, DeadLetterAnswer, DeadLetterPage, TaskAnswer

bp = Blueprint("dead", __name__, url_prefix="/api/v1/dlq")

_MOST_BYTES = 64 * MAX_IDS


def _many(body: type[DeadPurgeBody], *, required: bool = True) -> Operation:
    return Operation(
        need="destructive",
        tag="dead letters",
        body=body,
        body_required=required,
        answers={200: BulkAnswer, 202: BulkAnswer},
        answer_headers={202: ("Location",)},
        problems=(429,),
    )


@bp.get("")
@operation(Operation(need="read", tag="dead letters", query=DeadListQuery, answers={200: DeadLetterPage}))
def index() -> Response:
    """List dead letters, newest first. A page may be short, even empty, and still have a next_cursor."""
    query = read_query(DeadListQuery)
    page = engine().client.queries.dead_letters.page(query.chosen(), query.limit, query.cursor)
    return answer({"dead_letters": [one.as_json() for one in page.letters], "next_cursor": page.next_cursor})


@bp.get("/<task:task_id>")
@operation(Operation(need="read", tag="dead letters", answers={200: DeadLetterAnswer}, problems=(404,)))
def show(task_id: str) -> Response:
    """Show a dead letter and its task."""
    queries = engine().client.queries
    letter = queries.dead_letters.of_task(checked_task_id(task_id))
    return answer({**letter.as_json(), "task": queries.task(task_id).as_json()})


@bp.post("/requeue")
@operation(_many(DeadRequeueBody))
def requeue_many() -> Response:
    """Queue many dead letters again: 200 when all of it is done, 202 when it goes on as a bulk job."""
    body = read_options(DeadRequeueBody, _MOST_BYTES)
    return carry_out(_wish("dlq.requeue", body, to_queue=body.queue, to_priority=body.priority), body)


@bp.post("/discard")
@operation(_many(DeadBulkBody))
def discard_many() -> Response:
    """Give many dead letters up: 200 when all of it is done, 202 when it goes on as a bulk job."""
    body = read_options(DeadBulkBody, _MOST_BYTES)
    return carry_out(_wish("dlq.discard", body), body)


@bp.post("/purge")
@operation(_many(DeadPurgeBody, required=False))
def purge() -> Response:
    """Give all dead letters up, or all of a filter: 200 when all of it is done, 202 when it goes on as a bulk job."""
    body = read_options(DeadPurgeBody, _MOST_BYTES)
    return carry_out(_wish("dlq.purge", body), body)


def _wish(action: Action, body: DeadPurgeBody, to_queue: str | None = None, to_priority: int | None = None) -> BulkWish:
    given = [name for name in ("task_ids", "filter") if getattr(body, name) is not None]
    if len(given) == 2 or (not given and action != "dlq.purge"):
        message = "give either task_ids or filter; an empty filter means all"
        raise InvalidRequest(message, errors=[fault("/filter", message)])
    return BulkWish(
        action=action,
        wanted=None if body.task_ids else body.filter.chosen() if body.filter else DeadFilter(),
        task_ids=body.task_ids or (),
        to_queue=to_queue,
        to_priority=to_priority,
        rate=body.rate,
    )


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
    """Give a dead letter up: its entry goes, its task is kept for its retention, failed and marked."""
    options = read_options(Reason)
    task = engine().client.discard(checked_task_id(task_id), actor=actor(options.reason))
    return answer(task.as_json())
