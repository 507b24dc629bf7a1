"""The API of tasks: submit, look, wait, cancel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, request

from dtq import trace
from dtq.bulk import BulkWish
from dtq.errors import DtqError, InvalidRequest
from dtq.model import Task
from dtq.strictjson import fault
from dtq.submission import Submission, parse_batch
from dtq.web import meters
from dtq.web.auth import actor
from dtq.web.bulk import carry_out
from dtq.web.engine import engine
from dtq.web.http import MAX_BATCH_BYTES, answer, checked_task_id, idempotency_key, read_json_body
from dtq.web.intake import accept, location, trace_of
from dtq.web.operation import Operation, operation
from dtq.web.problem import problem
from dtq.web.queries import Reason, TaskCancelBody, TaskListQuery, WaitQuery, read_options, read_query
from dtq.web.schemas import BatchAnswer, BatchBody, BulkAnswer, ResultAnswer, TaskAnswer, TaskPage

bp = Blueprint("tasks", __name__, url_prefix="/api/v1/tasks")


@bp.post("")
@operation(
    Operation(
        need="write",
        tag="tasks",
        body=Submission,
        headers=("Idempotency-Key", "traceparent", "tracestate"),
        answers={202: TaskAnswer, 200: TaskAnswer},
        answer_headers={202: ("Location",), 200: ("Location",)},
        problems=(409, 413, 422),
    )
)
def submit() -> Response:
    """Submit a task.

    202 with the task; 200 with `duplicate: true` when its idempotency key belongs to a task that has ended.
    """
    task = accept(engine(), request.environ)
    return answer(task.as_json(), 200 if task.duplicate else 202, {"Location": location(task)})


@bp.post("/batch")
@operation(
    Operation(need="write", tag="tasks", body=BatchBody, answers={200: BatchAnswer}, problems=(413,)),
)
def submit_batch() -> Response:
    """Submit up to a thousand tasks; each is accepted or refused by itself, and answered in its place."""
    if idempotency_key(request.environ) is not None:
        raise InvalidRequest(
            "a batch has no Idempotency-Key header: give each task its idempotency_key",
            errors=[fault("/idempotency_key", "belongs in each task of a batch")],
        )
    shared = engine()
    parsed = parse_batch(read_json_body(request.environ, MAX_BATCH_BYTES), shared.limits)
    good = [one for one in parsed if isinstance(one, Submission)]
    with trace.carrying(trace_of(request.environ)):
        outcomes = iter(shared.client.submit_parsed(good) if good else ())
    results = []
    for one in parsed:
        if isinstance(one, Submission):
            results.append(_result(next(outcomes), one.queue))
        else:
            results.append(_result(one))
    return answer({"results": results})


def _result(outcome: Task | DtqError, queue: str | None = None) -> dict[str, Any]:
    if isinstance(outcome, DtqError):
        meters.rejected(outcome, queue)
        return {"status": outcome.http_status, "problem": problem(outcome)}
    return {"status": 200 if outcome.duplicate else 202, "task": outcome.as_json()}


@bp.get("")
@operation(Operation(need="read", tag="tasks", query=TaskListQuery, answers={200: TaskPage}))
def index() -> Response:
    """List tasks, newest first, without payloads, results and histories.

    No index tells type and tag: a page with these filters may be short, even empty, and still have a `next_cursor`;
    `looked_at` says how many tasks it has looked at.
    """
    query = read_query(TaskListQuery)
    client = engine().client
    page = client.queries.tasks(query.chosen(client.server.now), query.limit, query.cursor)
    shown = [task.as_json(brief=True) for task in page.tasks]
    return answer({"tasks": shown, "next_cursor": page.next_cursor, "looked_at": page.looked_at})


@bp.get("/<task:task_id>")
@operation(Operation(need="read", tag="tasks", query=WaitQuery, answers={200: TaskAnswer}, problems=(404,)))
def show(task_id: str) -> Response:
    """Show a task, at once or, with `wait`, as soon as it has ended."""
    task, headers = _task(task_id)
    return answer(task.as_json(), headers=headers)


@bp.get("/<task:task_id>/result")
@operation(
    Operation(
        need="read",
        tag="tasks",
        query=WaitQuery,
        answers={200: ResultAnswer, 202: ResultAnswer},
        answer_headers={202: ("Retry-After",)},
        problems=(404,),
    )
)
def result(task_id: str) -> Response:
    """Show what a task returned: 200 when it has ended, 202 before.

    `result_state` tells a result that was `null` from one that was not kept.
    """
    task, _ = _task(task_id)
    shown = {
        "task_id": task.task_id,
        "status": task.status.value,
        "result_state": task.result_state,
        "result": task.result,
        "error": task.error,
    }
    return answer(shown, 200) if task.terminal else answer(shown, 202, {"Retry-After": "1"})


@bp.post("/<task:task_id>/cancel")
@operation(
    Operation(
        need="destructive",
        tag="tasks",
        body=Reason,
        body_required=False,
        answers={202: TaskAnswer},
        problems=(404, 410),
    )
)
def cancel(task_id: str) -> Response:
    """Cancel a task: at once if it waits; if it runs, its worker is told (`cancel_requested`)."""
    options = read_options(Reason)
    task = engine().client.cancel(checked_task_id(task_id), actor=actor(options.reason))
    return answer(task.as_json(), 202)


@bp.post("/cancel")
@operation(
    Operation(
        need="destructive",
        tag="tasks",
        body=TaskCancelBody,
        answers={200: BulkAnswer, 202: BulkAnswer},
        answer_headers={202: ("Location",)},
        problems=(429,),
    )
)
def cancel_many() -> Response:
    """Cancel all tasks that fit and have not ended: 200 when all of it is done, 202 when it goes on as a bulk job.

    Those that run are told. Tasks that come after the call are left alone.
    """
    body = read_options(TaskCancelBody)
    tasks = body.filter.chosen(engine().client.server.now)
    return carry_out(BulkWish(action="task.cancel", tasks=tasks, rate=body.rate), body)


def _task(task_id: str) -> tuple[Task, Mapping[str, str]]:
    """Return the task, with `?wait=` when it has ended or the time is up; and headers for the answer.

    Beyond a number of waiting requests, the answer comes at once, and says when to ask again.
    """
    wait_s = read_query(WaitQuery).wait
    shared = engine()
    task = shared.client.get(checked_task_id(task_id))
    if task.terminal or not wait_s:
        return task, {}
    with shared.slots.waiter() as may_wait:
        if not may_wait:
            return task, {"Retry-After": "1"}
        return shared.client.wait_for_event(task_id, wait_s, shared.stopping), {}
