"""What somebody should look at: judged from the state of queues, workers and Redis, the same for every page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from dtq.charts import ENDED_BADLY, ENDED_WELL, FAILED_ATTEMPTS, Hour
from dtq.model import WorkerInfo
from dtq.queries import QueueInfo
from dtq.states import BANDS, Status

SLOW_S = 60.0
"""A task that has waited longer is worth a word."""
STARVED_S = 5.0
"""A band whose longest waiting task has waited this long, while a higher band is served, is starved."""
FAILING_SHARE = 0.1
FAILING_LEAST = 10
"""Attempts that must have ended in the last minutes before a share of failures says anything."""
LAST_MINUTES = 5
FULL_SHARE = 0.9
MEMORY_SHARE = 0.85
STALE_S = 15.0
"""A heartbeat that is older is late; the record ends soon after."""

Kind = Literal[
    "no_workers",
    "memory",
    "full",
    "not_served",
    "evicts",
    "failing",
    "starved",
    "slow",
    "late",
    "stuck",
    "paused",
    "dead",
]
_ORDER: tuple[Kind, ...] = get_args(Kind)
_SEVERE: frozenset[Kind] = frozenset({"no_workers", "memory", "full", "not_served", "evicts"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to look at. Which fields say something depends on its kind."""

    kind: Kind
    queue: str = ""
    worker: str = ""
    number: int = 0
    seconds: float = 0.0
    share: float = 0.0
    text: str = ""

    @property
    def severe(self) -> bool:
        """Whether tasks stand still, or will."""
        return self.kind in _SEVERE

    @property
    def subject(self) -> str:
        """What it is about: a queue, a worker, or what its kind says."""
        return self.queue or self.worker or self.kind


def findings(
    queues: Sequence[QueueInfo],
    workers: Sequence[WorkerInfo],
    hour: Hour,
    memory: Mapping[str, str],
    now: float,
    *,
    max_depth: int,
) -> list[Finding]:
    """Return what needs attention, the worst kinds first, within a kind in the order of the queues.

    memory: fields of INFO memory; empty when the server does not tell. now: Redis's clock, seconds.
    max_depth: how much a queue holds before it refuses more.
    """
    found = [*_of_workers(queues, workers, now), *_of_redis(memory)]
    for queue in queues:
        if queue.depth >= FULL_SHARE * max_depth:
            found.append(Finding(kind="full", queue=queue.queue, number=queue.depth))
        found += _of_queue(queue, hour)
    return sorted(found, key=lambda one: _ORDER.index(one.kind))


def by_subject(found: Sequence[Finding]) -> list[list[Finding]]:
    """Return the findings of each queue, worker or other thing together, in the order of their first."""
    subjects: dict[str, list[Finding]] = {}
    for one in found:
        subjects.setdefault(one.subject, []).append(one)
    return list(subjects.values())


def starved_bands(queue: QueueInfo) -> list[int]:
    """Return the bands that wait while a higher one gets the workers, the most urgent first."""
    if queue.paused is not None:
        return []
    oldest = queue.oldest_waiting_by_priority_s
    starved, freshest_above = [], None
    for band in BANDS:
        waited = oldest[band]
        if waited is None:
            continue
        if waited >= STARVED_S and freshest_above is not None and freshest_above < waited:
            starved.append(band)
        freshest_above = waited if freshest_above is None else min(freshest_above, waited)
    return starved


def _of_workers(queues: Sequence[QueueInfo], workers: Sequence[WorkerInfo], now: float) -> Iterator[Finding]:
    waiting = {queue.queue: queue.counts[Status.QUEUED] for queue in queues if queue.paused is None}
    if not workers:
        yield Finding(kind="no_workers", number=sum(waiting.values()))
        return
    served = {name for worker in workers if worker.state == "running" for name in worker.queues}
    for name, number in waiting.items():
        if number and name not in served:
            yield Finding(kind="not_served", queue=name, number=number)
    for worker in workers:
        if now - worker.heartbeat_at > STALE_S:
            yield Finding(kind="late", worker=worker.worker_id, seconds=now - worker.heartbeat_at)
        if worker.abandoned_threads:
            yield Finding(kind="stuck", worker=worker.worker_id, number=worker.abandoned_threads)


def _of_queue(queue: QueueInfo, hour: Hour) -> Iterator[Finding]:
    name = queue.queue
    if queue.paused is not None:
        yield Finding(
            kind="paused", queue=name, number=queue.counts[Status.QUEUED], text=str(queue.paused.get("by", ""))
        )
    failed = hour.recent(*FAILED_ATTEMPTS, queue=name, minutes=LAST_MINUTES)
    ended = failed + hour.recent(*ENDED_WELL, queue=name, minutes=LAST_MINUTES)
    if ended >= FAILING_LEAST and failed > FAILING_SHARE * ended:
        yield Finding(kind="failing", queue=name, number=failed, share=failed / ended)
    dead = hour.recent(*ENDED_BADLY, queue=name, minutes=LAST_MINUTES)
    if dead:
        yield Finding(kind="dead", queue=name, number=dead)
    oldest_s = queue.oldest_waiting_by_priority_s
    starved = starved_bands(queue)
    for band in starved:
        yield Finding(kind="starved", queue=name, number=band, seconds=oldest_s[band] or 0)
    slow_s = max((oldest_s[band] or 0 for band in BANDS if band not in starved), default=0.0)
    if queue.paused is None and slow_s > SLOW_S:
        yield Finding(kind="slow", queue=name, seconds=slow_s, number=queue.counts[Status.QUEUED])


def _of_redis(memory: Mapping[str, str]) -> Iterator[Finding]:
    policy = memory.get("maxmemory_policy", "noeviction")
    most, used = int(memory.get("maxmemory", "0")), int(memory.get("used_memory", "0"))
    if policy != "noeviction":
        yield Finding(kind="evicts", text=policy)
    if most and used > MEMORY_SHARE * most:
        yield Finding(kind="memory", number=used, share=used / most)
