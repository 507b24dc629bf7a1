"""Dead letters as operators look at them: chosen by a filter, newest first, counted, or found by their task."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dtq.errors import DeadLetterNotFound, TaskNotFound
from dtq.keys import Keys
from dtq.model import dumps, rfc3339
from dtq.redisio import Server
from dtq.scripts import Scripts
from dtq.streams import newest_id, oldest_id

LOOKS_A_SCRIPT = 500
MOST_LOOKED_AT = 2_000
"""How many entries one page looks at."""
_ENTRY = re.compile(rb"[0-9]+-[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilter:
    """Which dead letters; None means any."""

    queue: str | None = None
    task_type: str | None = None
    reason: str | None = None
    error_class: str | None = None
    error: str | None = None
    """A text in the error's class or message, whatever the case of its ASCII letters."""
    since: float | None = None
    """Seconds since the epoch: dead then or later."""
    until: float | None = None

    @property
    def everything(self) -> bool:
        """Whether this leaves nothing out."""
        return self == DeadFilter()

    def as_json(self) -> dict[str, Any]:
        """Return what is asked for, and nothing else."""
        shown = {
            "queue": self.queue,
            "task_type": self.task_type,
            "reason": self.reason,
            "error_class": self.error_class,
            "error": self.error,
            "since": rfc3339(self.since),
            "until": rfc3339(self.until),
        }
        return {name: value for name, value in shown.items() if value is not None}

    def script_arguments(self) -> dict[str, str]:
        """Return the arguments that scripts call by these names; the times go elsewhere."""
        text = dumps(self.error or "")[1:-1]
        return {
            "queue": self.queue or "",
            "task_type": self.task_type or "",
            "reason": self.reason or "",
            "error_class": self.error_class or "",
            "error_text": "".join(char.lower() if char.isascii() else char for char in text),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An entry of the dead-letter stream."""

    entry_id: str
    task_id: str
    queue: str
    task_type: str
    reason: str
    attempts: int
    worker_id: str
    error: Mapping[str, Any] | None
    dead_at: float

    def as_json(self) -> dict[str, Any]:
        """Return the letter as an answer shows it."""
        return {
            "task_id": self.task_id,
            "task_type": self.task_type,
            "queue": self.queue,
            "reason": self.reason,
            "attempts": self.attempts,
            "worker_id": self.worker_id or None,
            "error": self.error,
            "dead_at": rfc3339(self.dead_at),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadPage:
    """A part of the dead letters, newest first."""

    letters: Sequence[DeadLetter]
    next_cursor: str | None
    """Where the next page begins; None at the end."""


class DeadLetters:
    """Reads of one namespace. Every method raises RedisUnavailable when Redis is away."""

    def __init__(self, server: Server, keys: Keys, scripts: Scripts) -> None:
        self._server = server
        self._keys = keys
        self._scripts = scripts

    def page(self, wanted: DeadFilter, limit: int, cursor: str | None) -> DeadPage:
        """Return a page; it may be short, even empty, and still have a cursor. Raises InvalidTask for a bad cursor."""
        newest = newest_id(wanted.until, cursor)
        letters: list[DeadLetter] = []
        for _ in range(0, MOST_LOOKED_AT, LOOKS_A_SCRIPT):
            found, _, last, more = self._find(wanted, newest, limit=limit - len(letters), stop=True)
            letters += [_letter(entry, fields) for entry, fields in found]
            if not more:
                return DeadPage(letters=letters, next_cursor=None)
            newest = f"({last.decode()}"
            if len(letters) == limit:
                break
        return DeadPage(letters=letters, next_cursor=newest[1:])

    def count(self, wanted: DeadFilter, samples: int = 0) -> tuple[int, list[DeadLetter]]:
        """Return how many there are, and the newest few of them. Looks at all, in bounded steps."""
        if wanted.everything and not samples:
            return self.size(), []
        number, newest = 0, newest_id(wanted.until, None)
        shown: list[DeadLetter] = []
        while True:
            found, fitting, last, more = self._find(wanted, newest, limit=samples - len(shown), stop=False)
            number += fitting
            shown += [_letter(entry, fields) for entry, fields in found]
            if not more:
                return number, shown
            newest = f"({last.decode()}"

    def size(self) -> int:
        """Return how many dead letters there are."""
        return int(self._server.call("XLEN", self._keys.dead_letter()))

    def of_task(self, task_id: str) -> DeadLetter:
        """Return the dead letter of a task, without looking through the others.

        Raises TaskNotFound, DeadLetterNotFound.
        """
        status, entry = self._server.call("HMGET", self._keys.task(task_id), "status", "dead")
        if status is None:
            raise TaskNotFound(f"there is no task {task_id}: it never existed, or its retention ended", task_id=task_id)
        known = entry and _ENTRY.fullmatch(entry)
        found = self._server.call("XRANGE", self._keys.dead_letter(), entry, entry) if known else []
        if not found:
            told = status.decode(errors="replace")
            raise DeadLetterNotFound(f"task {task_id} is no dead letter; it is {told}", task_id=task_id, status=told)
        return _letter(*found[0])

    def _find(self, wanted: DeadFilter, newest: str, *, limit: int, stop: bool) -> Any:
        arguments: dict[str, Any] = {
            "newest": newest,
            "oldest": oldest_id(wanted.since),
            "limit": limit,
            "looks": LOOKS_A_SCRIPT,
            "stop": "1" if stop else "0",
            **wanted.script_arguments(),
        }
        return self._scripts.run("find_dead", **arguments)


def _letter(entry: bytes, fields: Sequence[bytes]) -> DeadLetter:
    text = {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, value in zip(fields[::2], fields[1::2], strict=True)
    }
    entry_id, attempts = entry.decode(), text.get("attempts", "")
    return DeadLetter(
        entry_id=entry_id,
        task_id=text.get("id", ""),
        queue=text.get("queue", ""),
        task_type=text.get("type", ""),
        reason=text.get("reason", ""),
        attempts=int(attempts) if attempts.isascii() and attempts.isdigit() else 0,
        worker_id=text.get("worker", ""),
        error=_error(text.get("error", "")),
        dead_at=int(entry_id.partition("-")[0]) / 1000,
    )


def _error(text: str) -> Mapping[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:  # none, or another one's
        return None
    return found if isinstance(found, dict) else None
