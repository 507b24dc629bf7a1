"""What a bulk job is to do, and how far it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dtq.deadletters import DeadFilter
from dtq.errors import NewerSchema, Undecodable
from dtq.keys import SCHEMA_VERSION
from dtq.model import Actor, rfc3339

Action = Literal["dlq.requeue", "dlq.discard", "dlq.purge", "queue.purge"]
State = Literal["running", "done", "aborted"]

ID_CHARS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkWish:
    """What somebody asks for: dead letters by their tasks' ids or by a filter, or a queue that is to be purged."""

    action: Action
    wanted: DeadFilter | None = None
    task_ids: Sequence[str] = ()
    queue: str | None = None
    """The queue of `queue.purge`."""
    to_queue: str | None = None
    to_priority: int | None = None
    rate: float | None = None
    """At most so many a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkJob:
    """A bulk job as its record tells it."""

    bulk_id: str
    wish: BulkWish
    actor: Actor
    state: State
    total: int
    """How many there were to do when it began."""
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
            "filter": None if wish.wanted is None else wish.wanted.as_json(),
            "task_ids": len(wish.task_ids) or None,
            "to_queue": wish.to_queue,
            "to_priority": wish.to_priority,
            "rate": wish.rate,
            "total": self.total,
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


def preview_as_json(wish: BulkWish, actor: Actor, total: int, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a job would be, in the shape of one: nothing is written down, so it has no id."""
    job = BulkJob(bulk_id="", wish=wish, actor=actor, state="running", total=total)
    return job.as_json() | {"bulk_id": None, "state": "preview", "samples": list(samples)}


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
    on_queue = action == "queue.purge"
    wish = BulkWish(
        action=action,
        wanted=None if on_queue or ids else DeadFilter(**json.loads(text["filter"])),
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
        done=int(text["done"]),
        skipped=int(text["skipped"]),
        failed=int(text["failed"]),
        latest=text["latest"],
        held=int(text["lease"]) > now_ms,
        created_at=int(text["created"]) / 1000,
        updated_at=int(text["updated"]) / 1000,
        ended_at=int(text["ended"]) / 1000 if "ended" in text else None,
    )
