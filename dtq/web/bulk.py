"""The API of bulk jobs: what takes longer than an answer may goes on beside the requests, and can be looked at."""

from __future__ import annotations

from flask import Blueprint, Response

from dtq.bulk import BulkWish, preview_as_json
from dtq.errors import BulkJobNotFound, RedisUnavailable
from dtq.keys import TASK_ID
from dtq.web.auth import actor
from dtq.web.engine import engine
from dtq.web.http import answer
from dtq.web.operation import Operation, operation
from dtq.web.queries import BulkOptions, Reason, read_options
from dtq.web.schemas import BulkAnswer, BulkList

bp = Blueprint("bulk", __name__, url_prefix="/api/v1/bulk")

INLINE_S = 2.0
"""For how long an answer waits for a job to end."""


def carry_out(wish: BulkWish, options: BulkOptions) -> Response:
    """Answer what was done: 200 when all of it is, 202 with the job when it goes on; or, for a dry run, what would be.

    Raises InvalidTask, TooManyBulkJobs.
    """
    shared, who = engine(), actor(options.reason)
    client = shared.client
    if options.dry_run:
        return answer(preview_as_json(wish, who, client.preview(wish)))
    job = client.begin_bulk(wish, actor=who)
    try:
        if wish.rate is None:
            job = client.run_bulk(job, stop=shared.stopping, within_s=INLINE_S)
    except RedisUnavailable:  # the job is written down, and goes on once Redis is back
        pass
    if job.ended:
        return answer(job.as_json())
    shared.bulk.nudge()
    return answer(job.as_json(), 202, {"Location": f"/api/v1/bulk/{job.bulk_id}"})


@bp.get("")
@operation(Operation(need="read", tag="bulk jobs", answers={200: BulkList}))
def index() -> Response:
    """List the last bulk jobs, newest first."""
    return answer({"jobs": [job.as_json() for job in engine().client.bulk.recent()]})


@bp.get("/<bulk_id>")
@operation(Operation(need="read", tag="bulk jobs", answers={200: BulkAnswer}, problems=(404,)))
def show(bulk_id: str) -> Response:
    """Show how far a bulk job is."""
    return answer(engine().client.bulk.get(_checked(bulk_id)).as_json())


@bp.post("/<bulk_id>/abort")
@operation(
    Operation(
        need="destructive",
        tag="bulk jobs",
        body=Reason,
        body_required=False,
        answers={200: BulkAnswer},
        problems=(404, 409),
    )
)
def abort(bulk_id: str) -> Response:
    """Let a bulk job go no further; what it has done stays done."""
    options = read_options(Reason)
    return answer(engine().client.abort_bulk(_checked(bulk_id), actor=actor(options.reason)).as_json())


def _checked(bulk_id: str) -> str:
    if not TASK_ID.fullmatch(bulk_id):
        raise BulkJobNotFound("there is no such bulk job: ids are 32 hexadecimal digits")
    return bulk_id
