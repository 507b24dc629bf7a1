"""The engine's reads: one task, lists, counts, queues, workers. Nothing here changes anything.

Lists come from the indexes that the scripts keep, newest created first by Redis's clock; a page costs the same at a
thousand tasks and at a million. A filter without an index (task type, tag) looks at a bounded number of records and
says how far it has looked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dtq.audit import AuditFilter, AuditPage, read_audit
from dtq.deadletters import DeadLetters
from dtq.errors import InvalidTask, NewerSchema, TaskNotFound, Undecodable
from dtq.keys import Keys
from dtq.limits import script_limits
from dtq.model import HandlerPolicy, Task, WorkerInfo, rfc3339, task_from_redis
from dtq.redisio import Server
from dtq.scripts import Scripts
from dtq.settings import Settings
from dtq.states import BANDS, Status
from dtq.taskfilter import TaskFilter

MAX_PAGE = 200
QUEUES_A_SCRIPT = 50
INDEXES_A_SCRIPT = 50 * len(Status)
"""Of the lists of so many queues, one script makes a page in one look; the pages of more are merged here."""
MOST_LOOKED_AT = 1_000
"""How many records a filter without an index looks at for one page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a list."""

    tasks: Sequence[Task]
    next_cursor: str | None
    """Where the next page begins; None at the end of the list."""
    looked_at: int
    """How many records were read for this page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskParts:
    """A task whose large parts were read only so far, for people who look at it."""

    task: Task | None
    """Without payload and result; None when the record cannot be read: `fault` says why."""
    fault: str
    record: Mapping[str, str]
    """The hash as it is."""
    payload: bytes
    """The first bytes of the payload's JSON."""
    payload_bytes: int
    """How many it has in all; 0 when it is gone."""
    result: bytes
    result_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """A queue at one moment. Every count is exact."""

    queue: str
    counts: Mapping[Status, int]
    depth: int
    """Entries in its ten streams, waiting or claimed."""
    waiting_by_priority: Mapping[int, int]
    claimed_by_priority: Mapping[int, int]
    """Entries that workers hold."""
    oldest_waiting_by_priority_s: Mapping[int, float | None]
    """How long the longest waiting task of each band has waited since its creation or the end of its delay, seconds."""
    paused: Mapping[str, Any] | None
    """Who paused it, when and why; None when it is not paused."""

    @property
    def oldest_waiting_s(self) -> float | None:
        """How long the longest waiting task has waited, seconds; None when none waits."""
        return max((age for age in self.oldest_waiting_by_priority_s.values() if age is not None), default=None)

    def as_json(self) -> dict[str, Any]:
        """Return the queue as an answer shows it."""
        return {
            "queue": self.queue,
            "paused": self.paused is not None,
            "pause": None if self.paused is None else {**self.paused, "at": rfc3339(self.paused.get("at"))},
            "depth": self.depth,
            "counts": {status.value: number for status, number in self.counts.items()},
            "waiting_by_priority": {str(band): number for band, number in self.waiting_by_priority.items()},
            "oldest_waiting_seconds": self.oldest_waiting_s,
            "oldest_waiting_seconds_by_priority": {
                str(band): age for band, age in self.oldest_waiting_by_priority_s.items()
            },
        }


class Queries:
    """Reads of one namespace. Safe to use from any thread. Every method raises RedisUnavailable when Redis is away."""

    def __init__(self, server: Server, settings: Settings) -> None:
        self._server = server
        self._keys = Keys(settings.namespace)
        self._scripts = Scripts(server, self._keys, script_limits(settings))
        self.dead_letters = DeadLetters(server, self._keys, self._scripts)

    # --- tasks --------------------------------------------------------------------------------------------------------

    def task(self, task_id: str) -> Task:
        """Return a task with payload, result and history. Raises TaskNotFound, NewerSchema, Undecodable."""
        keys = self._keys
        record, payload, result, attempts = self._server.pipeline(
            [
                ("HGETALL", keys.task(task_id)),
                ("GET", keys.payload(task_id)),
                ("GET", keys.result(task_id)),
                ("LRANGE", keys.attempts(task_id), 0, -1),
            ]
        )
        if not record:
            raise TaskNotFound(f"there is no task {task_id}: it never existed, or its retention ended", task_id=task_id)
        return task_from_redis(task_id, _fields(record), payload=payload, result=result, attempts=attempts)

    def task_parts(self, task_id: str, most_bytes: int) -> TaskParts:
        """Return a task, of its payload and its result at most so many bytes each. Raises TaskNotFound.

        A record that cannot be read is no error here: it is what one wants to look at.
        """
        keys = self._keys
        payload_key, result_key = keys.payload(task_id), keys.result(task_id)
        flat, payload_bytes, payload, result_bytes, result, attempts = self._server.pipeline(
            [
                ("HGETALL", keys.task(task_id)),
                ("STRLEN", payload_key),
                ("GETRANGE", payload_key, 0, most_bytes - 1),
                ("STRLEN", result_key),
                ("GETRANGE", result_key, 0, most_bytes - 1),
                ("LRANGE", keys.attempts(task_id), 0, -1),
            ]
        )
        if not flat:
            raise TaskNotFound(f"there is no task {task_id}: it never existed, or its retention ended", task_id=task_id)
        record, task, fault = _fields(flat), None, ""
        try:
            task = task_from_redis(task_id, record, attempts=attempts, has_result=result_bytes > 0)
        except (NewerSchema, Undecodable) as error:
            fault = error.message
        return TaskParts(
            task=task,
            fault=fault,
            record={name.decode(errors="replace"): value.decode(errors="replace") for name, value in record.items()},
            payload=payload,
            payload_bytes=payload_bytes,
            result=result,
            result_bytes=result_bytes,
        )

    def status(self, task_id: str) -> Status:
        """Return a task's status alone. Raises TaskNotFound, Undecodable."""
        status = self._server.call("HGET", self._keys.task(task_id), "status")
        if status is None:
            raise TaskNotFound(f"there is no task {task_id}", task_id=task_id)
        try:
            return Status(status.decode())
        except ValueError as error:
            raise Undecodable(f"the record of task {task_id} cannot be read: {error}", task_id=task_id) from error

    def tasks(self, wanted: TaskFilter, limit: int = 50, cursor: str | None = None) -> Page:
        """Return a page of tasks without their large parts.

        limit: 1 to 200. cursor: `next_cursor` of the page before. A page may be short, even empty, and still have a
        cursor: then MOST_LOOKED_AT records were looked at.
        Raises InvalidTask for a cursor that is none.
        """
        limit = min(max(limit, 1), MAX_PAGE)
        place = _place(cursor)
        if cursor is None and wanted.created_before is not None:
            place = (str(round(wanted.created_before * 1e6)), "0")
        indexes = self._indexes(wanted)
        tasks: list[Task] = []
        looked_at, step = 0, limit
        while indexes and looked_at < MOST_LOOKED_AT:
            ids = self._ids(indexes, place, step, wanted.created_after)
            for score, task in self._records(ids):
                looked_at += 1
                place = score
                if task is not None and wanted.accepts(task):
                    tasks.append(task)
                    if len(tasks) == limit:
                        return Page(tasks=tasks, next_cursor=_cursor(place), looked_at=looked_at)
            if len(ids) < step:
                return Page(tasks=tasks, next_cursor=None, looked_at=looked_at)
            step = min(2 * step, MAX_PAGE, MOST_LOOKED_AT - looked_at)  # a rare tag is not looked for one by one
        return Page(tasks=tasks, next_cursor=_cursor(place) if indexes else None, looked_at=looked_at)

    def some_tasks(self, task_ids: Sequence[str]) -> list[Task | None]:
        """Return tasks by their ids, at most MAX_PAGE, without their large parts; None for one that is not there."""
        places = [(("", task_id), task_id) for task_id in task_ids[:MAX_PAGE]]
        return [task for _, task in self._records(places)]

    def count_indexed(self, wanted: TaskFilter) -> int:
        """Return how many tasks the indexes tell of; exact for a filter that is `indexed`, else the most it can be."""
        lowest = "-inf" if wanted.created_after is None else f"({wanted.created_after * 1e6:.0f}"
        highest = "+inf" if wanted.created_before is None else f"({wanted.created_before * 1e6:.0f}"
        commands = [("ZCOUNT", self._keys.index(*one), lowest, highest) for one in self._indexes(wanted)]
        return sum(self._server.pipeline(commands))

    def _indexes(self, wanted: TaskFilter) -> list[tuple[str, str]]:
        queues = [wanted.queue] if wanted.queue is not None else self.queue_names()
        return [(queue, status.value) for queue in queues for status in wanted.chosen]

    def _ids(
        self, indexes: Sequence[tuple[str, str]], place: tuple[str, str], limit: int, after: float | None
    ) -> list[tuple[tuple[str, str], str]]:
        lowest = 0 if after is None else round(after * 1e6) + 1
        found: set[tuple[int, str]] = set()
        for start in range(0, len(indexes), INDEXES_A_SCRIPT):
            part = self._scripts.run(
                "list_tasks",
                items=indexes[start : start + INDEXES_A_SCRIPT],
                score=place[0],
                last_id=place[1],
                limit=limit,
                lowest=lowest,
            )
            found.update((int(score), task_id.decode()) for score, task_id in zip(part[::2], part[1::2], strict=True))
            if len(found) >= limit:
                found = set(sorted(found)[-limit:])
                lowest = min(found)[0]
        return [((str(score), task_id), task_id) for score, task_id in sorted(found, reverse=True)]

    def _records(self, ids: Sequence[tuple[tuple[str, str], str]]) -> Iterator[tuple[tuple[str, str], Task | None]]:
        records = self._scripts.run("read_tasks", items=[(task_id,) for _, task_id in ids]) if ids else []
        for (place, task_id), (record, has_result) in zip(ids, records, strict=True):
            try:
                fields = _fields(record)
                yield place, task_from_redis(task_id, fields, has_result=has_result == 1) if record else None
            except (NewerSchema, Undecodable):
                yield place, None

    # --- queues -------------------------------------------------------------------------------------------------------

    def queue_names(self) -> list[str]:
        """Return the names of all queues that hold tasks or were used within a day, sorted."""
        return sorted(name.decode() for name in self._server.call("ZRANGE", self._keys.queues(), 0, -1))

    def counts(self, queue: str) -> Mapping[Status, int]:
        """Return how many tasks of a queue are in each status, exactly."""
        numbers = self._server.pipeline([("ZCARD", self._keys.index(queue, status)) for status in Status])
        return dict(zip(Status, numbers, strict=True))

    def queue(self, name: str) -> QueueInfo:
        """Return one queue; one that was never used is empty."""
        return self.queues([name])[0]

    def queues(self, names: Sequence[str] | None = None) -> list[QueueInfo]:
        """Return these queues, or every queue, by name."""
        names = self.queue_names() if names is None else names
        now = self._server.now()
        infos: list[QueueInfo] = []
        for start in range(0, len(names), QUEUES_A_SCRIPT):
            chunk = names[start : start + QUEUES_A_SCRIPT]
            rows = self._scripts.run("queue_info", items=[(name,) for name in chunk], statuses=",".join(Status))
            infos += [_queue_info(name, row, now) for name, row in zip(chunk, rows, strict=True)]
        return infos

    # --- workers ------------------------------------------------------------------------------------------------------

    def workers(self) -> list[WorkerInfo]:
        """Return every worker whose record is alive, by id."""
        names = sorted(name.decode() for name in self._server.call("ZRANGE", self._keys.workers(), 0, -1))
        records = self._server.pipeline([("HGETALL", self._keys.worker(name)) for name in names])
        infos = (_worker(name, _fields(record)) for name, record in zip(names, records, strict=True) if record)
        return [info for info in infos if info is not None]

    def handlers(self) -> Mapping[str, HandlerPolicy]:
        """Return what the live workers publish of their handlers, by task type."""
        names = self._server.call("ZRANGE", self._keys.workers(), 0, -1)
        texts = self._server.pipeline([("HGET", self._keys.worker(name.decode()), "handlers") for name in names])
        found: dict[str, HandlerPolicy] = {}
        for text in texts:
            found.update(_policies(text))
        return found

    def leader(self) -> str | None:
        """Return the id of the worker that leads, or None."""
        leader = self._server.call("GET", self._keys.scheduler_lock())
        return leader.decode() if leader else None

    # --- operators ----------------------------------------------------------------------------------------------------

    def audit(self, wanted: AuditFilter, limit: int = 50, cursor: str | None = None) -> AuditPage:
        """Return a page of what operators did, newest first; as with tasks, it may be short and have a cursor.

        limit: 1 to 200. Raises InvalidTask for a cursor that is none.
        """
        return read_audit(self._server, self._keys, wanted, min(max(limit, 1), MAX_PAGE), cursor)

    # --- health -------------------------------------------------------------------------------------------------------

    def script_works(self) -> bool:
        """Run a script that reads, as a health check: a PING alone is answered where scripts are not."""
        self._scripts.run("list_tasks", score="", last_id="", limit=1, lowest=0)
        return True


def _fields(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _place(cursor: str | None) -> tuple[str, str]:
    if cursor is None:
        return "", ""
    score, _, task_id = cursor.partition("-")
    if not score.isascii() or not score.isdigit() or not task_id.isalnum() or len(cursor) > 64:
        message = "not a cursor; use next_cursor of the page before, unchanged"
        raise InvalidTask(f"cursor: {message}", errors=[{"pointer": "/cursor", "message": message}])
    return score, task_id


def _cursor(place: tuple[str, str]) -> str:
    return f"{place[0]}-{place[1]}"


def _queue_info(name: str, row: Sequence[Any], now: float) -> QueueInfo:
    counts, lengths, claimed, oldest, paused = row
    waiting_s = {band: round(max(0.0, now - int(oldest[band]) / 1e6), 3) if oldest[band] else None for band in BANDS}
    return QueueInfo(
        queue=name,
        counts=dict(zip(Status, counts, strict=True)),
        depth=sum(lengths),
        waiting_by_priority={band: max(0, lengths[band] - claimed[band]) for band in BANDS},
        claimed_by_priority={band: claimed[band] for band in BANDS},
        oldest_waiting_by_priority_s=waiting_s,
        paused=json.loads(paused) if paused else None,
    )


def _policies(text: bytes | None) -> dict[str, HandlerPolicy]:
    try:
        return {
            task_type: HandlerPolicy(policy["max_attempts"], policy["timeout_ms"], policy["schema"])
            for task_type, policy in json.loads(text or b"{}").items()
        }
    except (KeyError, ValueError, TypeError, AttributeError):  # another version's
        return {}


def _worker(name: str, record: Mapping[bytes, bytes]) -> WorkerInfo | None:
    text = {field.decode(): value.decode("utf-8", "replace") for field, value in record.items()}
    try:
        status = json.loads(text["status"])
        state: Literal["running", "quiet", "draining"] = status["state"]
        return WorkerInfo(
            worker_id=name,
            queues=tuple(text["queues"].split(",")),
            concurrency=int(text["concurrency"]),
            lease_s=int(text["lease"]) / 1000,
            started_at=int(text["started"]) / 1000,
            heartbeat_at=int(text["heartbeat"]) / 1000,
            state=state,
            running=status["running"],
            held=status["held"],
            task_types=tuple(sorted(json.loads(text["handlers"]))),
            abandoned_threads=status["abandoned_threads"],
            host=text["host"],
            pid=int(text["pid"]),
            version=text["version"],
        )
    except (KeyError, ValueError, TypeError):  # half written, or another version's
        return None
