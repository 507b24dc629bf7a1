"""What a bulk job is to do, and how far it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dtq.deadletters import DeadFilter
from dtq.errors import NewerSchema, Undecodable
from dtq.keys import SCHEMA_VERSION
from dtq.model import Actor, rfc3339
from dtq.taskfilter import TaskFilter

Action = Literal["dlq.requeue", "dlq.discard", "dlq.purge", "queue.purge", "task.cancel"]
State = Literal["running", "done", "aborted"]

ID_CHARS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkWish:
    """What somebody asks for: of dead letters by ids or by a filter, of a queue to purge, or of tasks to cancel."""

    action: Action
    wanted: DeadFilter | None = None
    task_ids: Sequence[str] = ()
    queue: str | None = None
    """The queue of `queue.purge`."""
    tasks: TaskFilter | None = None
    """Those of `task.cancel`; what has ended is not among them, whatever it says."""
    to_queue: str | None = None
    to_priority: int | None = None
    rate: float | None = None
    """At most so many a second."""

    def filter_as_json(self) -> dict[str, Any] | None:
        """Return which filter it has, as an answer shows it; None for one without."""
        wanted = self.tasks if self.tasks is not None else self.wanted
        return None if wanted is None else wanted.as_json()


class Preview(NamedTuple):
    """What a wish is about now."""

    total: int
    samples: Sequence[Mapping[str, Any]]
    exact: bool = True
    """Whether there are no more: a filter without an index is counted only so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkJob:
    """A bulk job as its record tells it."""

    bulk_id: str
    wish: BulkWish
    actor: Actor
    state: State
    total: int
    """How many there were to do when it began."""
    total_exact: bool = True
    """Whether there were no more: a filter without an index is counted only so far."""
    done: int = 0
    skipped: int = 0
    """Had changed before their turn came, or were named twice."""
    failed: int = 0
    """Could not be changed: of a newer dtq, unreadable, or one queue too many."""
    latest: str = ""
    """The last entry that it may touch."""
    held: bool = False
    """Whether a process works on it."""
    created_at: float | None = None
    updated_at: float | None = None
    ended_at: float | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will be done."""
        return self.state != "running"

    def as_json(self) -> dict[str, Any]:
        """Return the job as an answer shows it."""
        wish = self.wish
        return {
            "bulk_id": self.bulk_id,
            "action": wish.action,
            "state": self.state,
            "queue": wish.queue,
            "filter": wish.filter_as_json(),
            "task_ids": len(wish.task_ids) or None,
            "to_queue": wish.to_queue,
            "to_priority": wish.to_priority,
            "rate": wish.rate,
            "total": self.total,
            "total_exact": self.total_exact,
            "done": self.done,
            "skipped": self.skipped,
            "failed": self.failed,
            "held": self.held,
            "actor": self.actor.name,
            "reason": self.actor.reason,
            "request_id": self.actor.request_id,
            "created_at": rfc3339(self.created_at),
            "updated_at": rfc3339(self.updated_at),
            "ended_at": rfc3339(self.ended_at),
        }


def preview_as_json(wish: BulkWish, actor: Actor, found: Preview) -> dict[str, Any]:
    """Return what a job would be, in the shape of one: nothing is written down, so it has no id."""
    job = BulkJob(bulk_id="", wish=wish, actor=actor, state="running", total=found.total, total_exact=found.exact)
    return job.as_json() | {"bulk_id": None, "state": "preview", "samples": list(found.samples)}


def job_from_redis(bulk_id: str, record: Mapping[bytes, bytes], now_ms: int) -> BulkJob:
    """Build a job from its record. Raises NewerSchema when a newer dtq wrote it, Undecodable for anything else."""
    try:
        text = {name.decode(): value.decode() for name, value in record.items()}
        if int(text["v"]) > SCHEMA_VERSION:
            raise NewerSchema(f"bulk job {bulk_id} was written by a newer dtq; upgrade this process")
        return _job(bulk_id, text, now_ms)
    except (KeyError, ValueError, TypeError) as error:
        raise Undecodable(f"the record of bulk job {bulk_id} cannot be read: {error!r}") from error


def _job(bulk_id: str, text: Mapping[str, str], now_ms: int) -> BulkJob:
    action: Any = text["action"]
    state: Any = text["state"]
    ids = text["task_ids"]
    on_queue, on_tasks = action == "queue.purge", action == "task.cancel"
    given = json.loads(text["filter"])
    wish = BulkWish(
        action=action,
        wanted=None if on_queue or on_tasks or ids else DeadFilter(**given),
        tasks=TaskFilter.from_stored(given["tasks"]) if on_tasks else None,
        task_ids=[ids[at : at + ID_CHARS] for at in range(0, len(ids), ID_CHARS)],
        queue=text["aim"] if on_queue else None,
        to_queue=text["to_queue"] or None,
        to_priority=int(text["to_priority"]) if text["to_priority"] else None,
        rate=float(text["rate"]) if text["rate"] else None,
    )
    return BulkJob(
        bulk_id=bulk_id,
        wish=wish,
        actor=Actor(*text["who"].split("\t")),
        state=state,
        total=int(text["total"]),
        total_exact=text.get("exact", "1") == "1",
        done=int(text["done"]),
        skipped=int(text["skipped"]),
        failed=int(text["failed"]),
        latest=text["latest"],
        held=int(text["lease"]) > now_ms,
        created_at=int(text["created"]) / 1000,
        updated_at=int(text["updated"]) / 1000,
        ended_at=int(text["ended"]) / 1000 if "ended" in text else None,
    )
