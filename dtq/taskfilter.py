"""Which tasks a list shows: what its indexes can tell, and what only the records can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Self

from dtq.model import Task, rfc3339
from dtq.states import TERMINAL, Status
from dtq.taskquery import TaskQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks a list shows; None means any."""

    queue: str | None = None
    status: Status | None = None
    statuses: Sequence[Status] = ()
    """Any of them; empty: any."""
    task_type: str | None = None
    type_pattern: str | None = None
    """With `*` for any characters."""
    tag: str | None = None
    tags: Sequence[str] = ()
    """All of them."""
    error: str | None = None
    """What the class or the message of the last error holds, in lower case."""
    error_class: str | None = None
    reason: str | None = None
    worker: str | None = None
    priority: int | None = None
    words: Sequence[str] = ()
    """Each is in the id, the type, a tag or the last error; in lower case."""
    created_after: float | None = None
    """Seconds since the epoch, exclusive."""
    created_before: float | None = None

    def accepts(self, task: Task) -> bool:
        """Whether the record fits what no index can tell."""
        return (
            (self.task_type is None or task.task_type == self.task_type)
            and (self.tag is None or self.tag in task.tags)
            and (self.status is None or task.status is self.status)
            and (not self.statuses or task.status in self.statuses)
            and (self.queue is None or task.queue == self.queue)
            and (self.worker is None or task.worker_id == self.worker)
            and (self.reason is None or task.reason == self.reason)
            and (self.error_class is None or (task.error or {}).get("class") == self.error_class)
            and (self.priority is None or task.priority == self.priority)
            and (self.type_pattern is None or fnmatchcase(task.task_type, self.type_pattern))
            and all(tag in task.tags for tag in self.tags)
            and (self.error is None or self.error in _error_text(task))
            and (not self.words or _has_words(task, self.words))
        )

    @property
    def indexed(self) -> bool:
        """Whether indexes alone can tell what fits: then a page is never short."""
        scanned = (self.task_type, self.tag, self.type_pattern, self.error, self.error_class, self.reason, self.worker)
        return self.priority is None and not (any(one is not None for one in scanned) or self.tags or self.words)

    @property
    def moving(self) -> bool:
        """Whether what it asks for changes while a task moves on, as its status, its worker and its last error do."""
        told = (self.status, self.error, self.error_class, self.reason, self.worker)
        return bool(self.statuses or self.words) or any(one is not None for one in told)

    @property
    def chosen(self) -> tuple[Status, ...]:
        """The statuses that may fit; none when they exclude each other."""
        return tuple(
            one for one in Status if self.status in (None, one) and (not self.statuses or one in self.statuses)
        )

    def live(self) -> TaskFilter | None:
        """Return the filter of those that have not ended; None when it asks only for such as have."""
        statuses = tuple(one for one in self.chosen if one not in TERMINAL)
        return replace(self, status=None, statuses=statuses) if statuses else None

    def as_json(self) -> dict[str, Any]:
        """Return what is asked for, and nothing else."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        given |= {name: rfc3339(given[name]) for name in ("created_after", "created_before")}
        if self.task_type is None:
            given["task_type"] = given.pop("type_pattern")
        return {
            name: list(value) if isinstance(value, tuple | list) else value
            for name, value in given.items()
            if value not in (None, (), [])
        }

    def stored(self) -> dict[str, Any]:
        """Return it as a record keeps it; `from_stored` reads that."""
        return {
            one.name: value for one in fields(self) if (value := getattr(self, one.name)) is not None and value != ()
        }

    @classmethod
    def from_stored(cls, record: Mapping[str, Any]) -> Self:
        """Build the filter that `stored` gave. Raises TypeError or ValueError for what this dtq does not know."""
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
        }
        if "status" in known:
            known["status"] = Status(known["status"])
        if "statuses" in known:
            known["statuses"] = tuple(Status(one) for one in known["statuses"])
        return cls(**known)

    @classmethod
    def of(cls, query: TaskQuery, now: float) -> TaskFilter:
        """Return what a query asks for. now: seconds since the epoch on Redis's clock, for ages."""
        exact = query.task_type is not None and "*" not in query.task_type
        return cls(
            queue=query.queue,
            statuses=query.statuses,
            task_type=query.task_type if exact else None,
            type_pattern=None if exact else query.task_type,
            tags=tuple(query.tags),
            error=query.error,
            error_class=query.error_class,
            reason=query.reason,
            worker=query.worker,
            priority=query.priority,
            words=tuple(query.words),
            created_after=None if query.younger_than_s is None else now - query.younger_than_s,
            created_before=None if query.older_than_s is None else now - query.older_than_s,
        )


def _error_text(task: Task) -> str:
    error = task.error or {}
    return f"{error.get('class', '')}: {error.get('message', '')}".lower()


def _has_words(task: Task, words: Sequence[str]) -> bool:
    text = " ".join((task.task_id, task.task_type, _error_text(task), *task.tags)).lower()
    return all(word in text for word in words)
