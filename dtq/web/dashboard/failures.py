"""What fails, grouped by error: dead letters, and tasks that failed and will be tried again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dtq.deadletters import DeadFilter
from dtq.queries import MAX_PAGE
from dtq.signature import common_text, signature
from dtq.states import Status
from dtq.taskfilter import TaskFilter
from dtq.taskquery import TaskQuery, quoted
from dtq.web.dashboard.dead import dead_filter, parse_dead
from dtq.web.dashboard.page import Asked, Context, page
from dtq.web.dashboard.reads import Reads

DEAD_LOOKED_AT = 2_000
A_READ = 500
GROUPS_SHOWN = 50
BARS = 24
HOUR_S = 3_600


@dataclass(slots=True)
class Group:
    """Errors that are one error."""

    signature: str
    error_class: str
    sample_id: str
    dead: int = 0
    retrying: int = 0
    types: Counter[str] = field(default_factory=Counter)
    queues: Counter[str] = field(default_factory=Counter)
    first_at: float = 0.0
    last_at: float = 0.0
    bars: list[int] = field(default_factory=lambda: [0] * BARS)
    """How many an hour in the last day, the hour that runs last."""

    @property
    def count(self) -> int:
        """How many there are in all."""
        return self.dead + self.retrying

    def query(self, narrowed: TaskQuery) -> str:
        """Return the query that finds its dead letters."""
        parts = [f"class:{quoted(self.error_class)}"] if self.error_class else []
        text = common_text(self.signature, self.error_class)
        parts += [f"error:{quoted(text)}"] if len(text) >= 4 else []
        parts += [f"queue:{narrowed.queue}"] if narrowed.queue else []
        return " ".join(parts)


@page("/failures", area="failures", parts={"groups": "failures/_groups.html"})
def index(reads: Reads, asked: Asked) -> Context:
    """Show what fails, what fails most first."""
    query = parse_dead(asked.get("q", ""))
    wanted = dead_filter(query, reads.now)
    groups: dict[str, Group] = {}
    looked_at = 0
    for one in _dead(reads, wanted):
        looked_at += 1
        _add(groups, one, reads.now)
    retrying = reads.client.queries.tasks(
        TaskFilter(status=Status.RETRYING, queue=query.queue, task_type=query.task_type, error=query.error), MAX_PAGE
    )
    for task in retrying.tasks:
        fields = {"task_id": task.task_id, "type": task.task_type, "queue": task.queue, "error": task.error,
                  "at": task.started_at or task.created_at, "dead": False}  # fmt: skip
        _add(groups, fields, reads.now)
    ordered = sorted(groups.values(), key=lambda group: (-group.count, group.signature))
    return {
        "title": "Failures",
        "path": "/failures",
        "example": 'queue:email type:email.welcome error:"refused" age<1h',
        "query": query,
        "groups": ordered[:GROUPS_SHOWN],
        "left_out": max(0, len(ordered) - GROUPS_SHOWN),
        "looked_at": looked_at,
        "size": reads.client.queries.dead_letters.size(),
        "retrying": reads.totals[Status.RETRYING],
        "retrying_looked_at": len(retrying.tasks),
        "most": DEAD_LOOKED_AT,
    }


def newest_groups(reads: Reads, looked_at: int, shown: int) -> list[Group]:
    """Return the most frequent errors among the newest dead letters."""
    groups: dict[str, Group] = {}
    for one in _dead(reads, DeadFilter(), looked_at):
        _add(groups, one, reads.now)
    return sorted(groups.values(), key=lambda group: (-group.count, group.signature))[:shown]


def _dead(reads: Reads, wanted: DeadFilter, most: int = DEAD_LOOKED_AT) -> Iterator[dict[str, Any]]:
    cursor = None
    for _ in range(0, most, A_READ):
        found = reads.client.queries.dead_letters.page(wanted, min(A_READ, most), cursor)
        for letter in found.letters:
            yield {"task_id": letter.task_id, "type": letter.task_type, "queue": letter.queue, "error": letter.error,
                   "reason": letter.reason, "at": letter.dead_at, "dead": True}  # fmt: skip
        cursor = found.next_cursor
        if cursor is None:
            return


def _add(groups: dict[str, Group], one: Mapping[str, Any], now: float) -> None:
    error = one["error"] or {}
    error_class = str(error.get("class", ""))
    found = signature(error_class, str(error.get("message", ""))) or str(one.get("reason", "no error was kept"))
    group = groups.get(found)
    if group is None:
        group = groups[found] = Group(found, error_class, one["task_id"], first_at=one["at"], last_at=one["at"])
    if one["dead"]:
        group.dead += 1
    else:
        group.retrying += 1
    group.types[one["type"]] += 1
    group.queues[one["queue"]] += 1
    if one["at"] >= group.last_at:
        group.last_at, group.sample_id = one["at"], one["task_id"]
    group.first_at = min(group.first_at, one["at"])
    back = int((now - one["at"]) // HOUR_S)
    if 0 <= back < BARS:
        group.bars[BARS - 1 - back] += 1
