"""The records of bulk jobs, and their single steps. Each step is one script, short enough to delay nobody."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from dtq.bulk.matching import count_matching
from dtq.bulk.model import ID_CHARS, BulkJob, BulkWish, job_from_redis
from dtq.control import check_place, requeue_mark
from dtq.deadletters import DeadFilter, DeadLetters
from dtq.encoding import plain, who
from dtq.errors import (
    BulkJobEnded,
    BulkJobNotFound,
    InvalidTask,
    NewerSchema,
    TooManyBulkJobs,
    Undecodable,
)
from dtq.keys import TASK_ID, Keys
from dtq.limits import script_limits
from dtq.model import Actor, Task, dumps, new_operation_id, new_task_id
from dtq.queries import Queries
from dtq.redisio import Server
from dtq.scripts import Scripts
from dtq.settings import Settings
from dtq.states import Status
from dtq.streams import newest_id, oldest_id
from dtq.taskfilter import TaskFilter

log = logging.getLogger(__name__)

MOST_A_STEP = 100
"""How many tasks a step changes at most."""
LOOKS_A_STEP = 300
"""How many dead letters a step looks at."""
LEASE_MS = 10_000
"""For how long a job is its runner's after each step."""
MAX_IDS = 1_000
MIN_RATE, MAX_RATE = 0.1, 10_000.0
_PURGED = (Status.PENDING, Status.RETRYING, Status.QUEUED)


class Step(NamedTuple):
    """What one step did."""

    code: Literal["RUNNING", "DONE", "ABORTED", "GONE", "HELD"]
    changed: int = 0
    took_s: float = 0.0
    """How long Redis was asked to change things; looking for them is not in it."""


class BulkJobs:
    """Begins, carries on and ends bulk jobs. Every method raises RedisUnavailable when Redis is away."""

    def __init__(self, server: Server, settings: Settings) -> None:
        self._server = server
        self._keys = Keys(settings.namespace)
        self._scripts = Scripts(server, self._keys, script_limits(settings))
        self._letters = DeadLetters(server, self._keys, self._scripts)
        self._queries = Queries(server, settings)

    # --- asking -------------------------------------------------------------------------------------------------------

    def count(self, wish: BulkWish) -> tuple[int, bool]:
        """Return how many tasks the wish is about now, and whether there are no more than that.

        Raises InvalidTask for a wish that cannot be.
        """
        check_wish(wish)
        if wish.tasks is not None:
            number, _, exact = count_matching(self._queries, wish.tasks)
            return number, exact
        if wish.queue is not None:
            queue = wish.queue
            numbers = self._server.pipeline([("ZCARD", self._keys.index(queue, status)) for status in _PURGED])
            return sum(numbers), True
        return len(wish.task_ids) or self._letters.count(wish.wanted or DeadFilter())[0], True

    def begin(self, wish: BulkWish, actor: Actor) -> BulkJob:
        """Write a job down; nothing is done yet. Raises InvalidTask, TooManyBulkJobs."""
        total, exact = self.count(wish)
        bulk_id, wanted = new_task_id(), wish.wanted or DeadFilter()
        fields = {name: value for name, value in dataclasses.asdict(wanted).items() if value is not None}
        latest = "" if wanted.until is None else newest_id(wanted.until, None)
        if wish.tasks is not None:
            # in a member of its own: a dtq that knows only filters of dead letters must not take it for one
            fields, before = {"tasks": wish.tasks.stored()}, wish.tasks.created_before
            latest = "" if before is None else str(max(round(before * 1e6), 0) - 1)
        first = "1 0" if wish.queue is not None else "0" if wish.task_ids else oldest_id(wanted.since)
        reply = self._scripts.run(
            "bulk_begin",
            job=bulk_id,
            action=wish.action,
            who=who(actor),
            aim=wish.queue or bulk_id,
            filter=dumps(fields),
            task_ids="".join(wish.task_ids),
            first=first,
            latest=latest,
            to_queue=wish.to_queue or "",
            to_priority="" if wish.to_priority is None else wish.to_priority,
            rate="" if wish.rate is None else wish.rate,
            total=total,
            exact=int(exact),
        )
        if reply[0] == b"TOO_MANY":
            raise TooManyBulkJobs(f"{reply[1]} bulk jobs have not ended; wait for one, or abort one", retry_after=10)
        return self.get(bulk_id)

    def abort(self, bulk_id: str, actor: Actor) -> BulkJob:
        """Let a job go no further; what it has done stays done. Raises BulkJobNotFound, BulkJobEnded."""
        told = self._scripts.run("bulk_abort", job=bulk_id, operation_id=new_operation_id(), who=who(actor))
        if told < 0:
            raise _unknown(bulk_id)
        job = self.get(bulk_id)
        if told == 0:
            raise BulkJobEnded(f"bulk job {bulk_id} has ended already: {job.state}", bulk_id=bulk_id, state=job.state)
        return job

    # --- looking ------------------------------------------------------------------------------------------------------

    def get(self, bulk_id: str) -> BulkJob:
        """Return a job. Raises BulkJobNotFound, NewerSchema, Undecodable."""
        (job,) = self._read([bulk_id], strict=True)
        return job

    def recent(self, limit: int = 50) -> list[BulkJob]:
        """Return the last jobs, newest first; those that cannot be read are left out."""
        ids = self._server.call("ZREVRANGE", self._keys.bulks(), 0, limit - 1)
        return self._read([one.decode() for one in ids])

    def waiting(self) -> list[BulkJob]:
        """Return the jobs that have not ended and that no process works on, oldest first."""
        ids = self._server.call("ZRANGE", self._keys.open_bulks(), 0, -1)
        return [job for job in self._read([one.decode() for one in ids]) if not job.held and not job.ended]

    def _read(self, ids: Sequence[str], *, strict: bool = False) -> list[BulkJob]:
        if not ids:
            return []
        clock, *records = self._server.pipeline([("TIME",), *(("HGETALL", self._keys.bulk(one)) for one in ids)])
        now_ms = int(clock[0]) * 1000 + int(clock[1]) // 1000
        found = []
        for bulk_id, flat in zip(ids, records, strict=True):
            if flat:
                try:
                    found.append(job_from_redis(bulk_id, dict(zip(flat[::2], flat[1::2], strict=True)), now_ms))
                except (NewerSchema, Undecodable):
                    if strict:
                        raise
            elif strict:
                raise _unknown(bulk_id)
        return found

    # --- doing --------------------------------------------------------------------------------------------------------

    def step(self, job: BulkJob, runner: str, limit: int = 25) -> Step:
        """Do the next up to `limit` (at most 100) of a job, unless another process works on it.

        runner: names this run; the job is its own for ten seconds after each step. limit: 0 only renews that.
        """
        return self._step(job, runner, min(limit, MOST_A_STEP), LEASE_MS)

    def release(self, job: BulkJob, runner: str) -> None:
        """Give a job back, so that another process need not wait for the lease to end."""
        self._step(job, runner, 0, 0)

    def _step(self, job: BulkJob, runner: str, limit: int, lease_ms: int) -> Step:
        if job.wish.tasks is not None:
            return self._cancel(job, job.wish.tasks, runner, limit, lease_ms)
        common: dict[str, Any] = {"id": job.bulk_id, "runner": runner, "lease_ms": lease_ms, "limit": limit}
        began = time.monotonic()
        if job.wish.queue is not None:
            reply = self._scripts.run("bulk_purge", **common)
        else:
            wanted = job.wish.wanted or DeadFilter()
            common |= {"looks": LOOKS_A_STEP, "mark": requeue_mark(job.actor), **wanted.script_arguments()}
            reply = self._scripts.run("bulk_dead", **common)
        return _told(reply, began)

    def _cancel(self, job: BulkJob, tasks: TaskFilter, runner: str, limit: int, lease_ms: int) -> Step:
        """The filter looks at a bounded number of records; what it finds is changed by a script that looks again."""
        place, reached, looked = b"", "", 0
        found: Sequence[Task] = ()
        if limit > 0:
            place, live = self._server.call("HGET", self._keys.bulk(job.bulk_id), "position"), tasks.live()
            if place is not None and live is not None:
                page = self._queries.tasks(live, limit, place.decode())
                reached, looked, found = page.next_cursor or "", page.looked_at, page.tasks
        last = limit > 0 and not reached
        began = time.monotonic()
        reply = self._scripts.run(
            "bulk_cancel",
            items=[(task.task_id, task.seq, task.status.value) for task in found],
            id=job.bulk_id,
            runner=runner,
            lease_ms=lease_ms,
            place=place or b"",
            reached="end" if last else reached,
            looked=looked,
            moving=int(tasks.moving),
            last=int(last),
            reason=plain(job.actor.reason or f"cancelled by {job.actor.name}"),
        )
        return _told(reply, began)


def _told(reply: Sequence[Any], began: float) -> Step:
    return Step(reply[0].decode(), reply[1] if len(reply) > 1 else 0, time.monotonic() - began)


def check_wish(wish: BulkWish) -> None:
    """Refuse a wish that cannot be. Raises InvalidTask naming what is wrong."""
    check_place(wish.queue)
    check_place(wish.to_queue, wish.to_priority)
    if wish.rate is not None and not MIN_RATE <= wish.rate <= MAX_RATE:
        raise _invalid("/rate", f"must be a number from {MIN_RATE:g} to {MAX_RATE:g}")
    if len(wish.task_ids) > MAX_IDS:
        raise _invalid("/task_ids", f"must be at most {MAX_IDS}; use a filter for more")
    if not all(len(one) == ID_CHARS and TASK_ID.fullmatch(one) for one in wish.task_ids):
        raise _invalid("/task_ids", "must be task ids: 32 hexadecimal digits each")


def _invalid(pointer: str, message: str) -> InvalidTask:
    return InvalidTask(f"{pointer}: {message}", errors=[{"pointer": pointer, "message": message}])


def _unknown(bulk_id: str) -> BulkJobNotFound:
    return BulkJobNotFound(
        f"there is no bulk job {bulk_id}: it never existed, or its record has expired", bulk_id=bulk_id
    )
