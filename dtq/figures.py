"""The numbers of a whole namespace, as `/metrics` tells them: a few round trips, however many tasks there are.

Counters never go back while a namespace lives: what a forgotten queue counted is counted as `_other`. The queues and
the task types that have numbers of their own are bounded; the rest is told together as `_other`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dtq.keys import Keys
from dtq.queries import Queries, QueueInfo
from dtq.redisio import Server
from dtq.serverinfo import server_info
from dtq.settings import Settings
from dtq.states import Status

OTHER = "_other"
"""What stands for all queues, or all types, that have no numbers of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A namespace at one moment."""

    counters: Mapping[tuple[str, str], Mapping[str, int]]
    """Counts since the namespace came to be, by (queue, task type), by what is counted."""
    queues: Sequence[QueueInfo]
    """The queues that have numbers of their own."""
    other_depth: int
    """Tasks that wait or run in all other queues."""
    scheduled: int
    """Tasks in the schedule: delays and retries."""
    dead_letters: int
    workers: int
    running: int
    """Tasks that the workers run, as their last heartbeats told it."""
    memory_used_bytes: int
    memory_max_bytes: int
    """0: no limit, or not told."""
    eviction_policy: str
    """What Redis does when its memory is full; "unknown" where it does not tell."""


def read_figures(server: Server, queries: Queries, settings: Settings) -> Figures:
    """Read the figures. Raises RedisUnavailable."""
    keys = Keys(settings.namespace)
    counted, names, scheduled, dead_letters, worker_ids = server.pipeline(
        [
            ("SMEMBERS", keys.counted_queues()),
            ("ZRANGE", keys.queues(), 0, -1),
            ("ZCARD", keys.schedule()),
            ("XLEN", keys.dead_letter()),
            ("ZRANGE", keys.workers(), 0, -1),
        ]
    )
    own = sorted(name.decode() for name in counted)
    rest = sorted({name.decode() for name in names} - set(own))
    totals = server.pipeline([("HGETALL", keys.totals(queue)) for queue in [*own, OTHER]])
    waiting = server.pipeline(
        [("ZCARD", keys.index(queue, status)) for queue in rest for status in (Status.QUEUED, Status.RUNNING)]
    )
    heartbeats = server.pipeline([("HGET", keys.worker(name.decode()), "status") for name in worker_ids])
    memory = server_info(server, "memory")
    return Figures(
        counters=_counters(dict(zip([*own, OTHER], totals, strict=True))),
        queues=queries.queues(own),
        other_depth=sum(waiting),
        scheduled=scheduled,
        dead_letters=dead_letters,
        workers=sum(1 for heartbeat in heartbeats if heartbeat is not None),
        running=sum(map(_running, heartbeats)),
        memory_used_bytes=int(memory.get("used_memory", "0")),
        memory_max_bytes=int(memory.get("maxmemory", "0")),
        eviction_policy=memory.get("maxmemory_policy") or "unknown",
    )


def _counters(totals: Mapping[str, Sequence[bytes]]) -> dict[tuple[str, str], dict[str, int]]:
    found: dict[tuple[str, str], dict[str, int]] = {}
    for queue, flat in totals.items():
        for field, number in zip(flat[::2], flat[1::2], strict=True):
            task_type, _, what = field.decode(errors="replace").rpartition(":")
            found.setdefault((queue, task_type), {})[what] = int(number)
    return found


def _running(heartbeat: bytes | None) -> int:
    try:
        return int(json.loads(heartbeat or b"{}").get("running", 0))
    except (ValueError, TypeError, AttributeError):  # another version's
        return 0
