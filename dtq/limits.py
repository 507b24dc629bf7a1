"""Limits: what the scripts are told of the settings, and what is asked of Redis before a submission."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping

from dtq.errors import RedisFull
from dtq.keys import Keys
from dtq.model import MAX_ATTEMPTS_KEPT
from dtq.redisio import Server
from dtq.serverinfo import server_info
from dtq.settings import Settings
from dtq.streams import WAKE_KEEP_MS, WAKE_MAXLEN

MAX_COUNTED_QUEUES = 100
"""Queues with counters of their own, and lines of their own in the metrics."""
MAX_COUNTED_TYPES = 1_000
"""Task types, over all queues, with counters of their own."""
MINUTE_KEEP_MS = 25 * 3_600_000
AUDIT_MAXLEN = 10_000
BULK_KEEP_MS = 7 * 86_400_000
BULK_LISTED = 200
BULK_OPEN = 20
EXPIRE_NET_MS = 3_600_000
MEMORY_SHARE = 0.95
LONGEST_DRAIN_S = 60
_CHECK_INTERVAL_S = 1.0
_LEAVING = (b":succeeded", b":failed", b":dead_lettered", b":cancelled", b":expired", b":retried")


def script_limits(settings: Settings) -> Mapping[str, int]:
    """Return the numbers that scripts name in CAPITALS."""
    return {
        "MAX_QUEUE_DEPTH": settings.max_queue_depth,
        "MAX_SCHEDULED": settings.max_scheduled,
        "MAX_QUEUES": settings.max_queues,
        "MAX_COUNTED_QUEUES": MAX_COUNTED_QUEUES,
        "MAX_COUNTED_TYPES": MAX_COUNTED_TYPES,
        "MAX_HISTORY": MAX_ATTEMPTS_KEPT,
        "MAX_CRASHES": settings.max_crashes,
        "MAX_TASKS_KEPT": settings.retention_max_tasks,
        "MINUTE_KEEP": MINUTE_KEEP_MS,
        "EVENTS_MAXLEN": settings.events_maxlen,
        "AUDIT_MAXLEN": AUDIT_MAXLEN,
        "BULK_KEEP": BULK_KEEP_MS,
        "BULK_LISTED": BULK_LISTED,
        "BULK_OPEN": BULK_OPEN,
        "WAKE_MAXLEN": WAKE_MAXLEN,
        "WAKE_KEEP": WAKE_KEEP_MS,
        "RETENTION_MS": round(settings.task_retention_s * 1000),
        "KEEP_MS": round(settings.task_retention_s * 1000) + EXPIRE_NET_MS,
        "RESULT_KEEP_MS": round(settings.result_retention_s * 1000),
        "IDEM_TTL_MS": round(settings.idem_ttl_s * 1000),
        "DLQ_ENABLED": int(settings.dlq_enabled),
        "DLQ_MAXLEN": settings.dlq_maxlen,
        "UNKNOWN_GRACE_MS": round(settings.unknown_type_grace_s * 1000),
    }


def drain_seconds(server: Server, keys: Keys, queue: str, depth: int) -> int:
    """Return in how many seconds (1 to 60) a full queue will have room again, judged by how fast it has drained.

    The room that is waited for is a hundredth of the depth: enough for several clients, soon enough for each.
    """
    clock = server.call("TIME")
    minute, second = divmod(int(clock[0]), 60)
    last, current = server.pipeline(
        [("HGETALL", keys.minute(queue, minute - 1)), ("HGETALL", keys.minute(queue, minute))]
    )
    drained = _drained(last) + _drained(current)
    if not drained:
        return LONGEST_DRAIN_S
    rate = drained / (60 + second if _drained(last) else max(second, 1))
    return min(LONGEST_DRAIN_S, max(1, math.ceil(max(1, depth / 100) / rate)))


def _drained(fields: list[bytes]) -> int:
    pairs = zip(fields[::2], fields[1::2], strict=True)
    return sum(int(number) for name, number in pairs if name.endswith(_LEAVING))


class MemoryGuard:
    """Refuses submissions while Redis is close to its maxmemory and would not evict: before writes start to fail."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._next_at = 0.0
        self._refusal: str | None = None

    def check(self) -> None:
        """Ask Redis at most once a second. Raises RedisFull, RedisUnavailable."""
        if time.monotonic() >= self._next_at and self._lock.acquire(blocking=False):
            try:
                self._refusal = self._look()
                self._next_at = time.monotonic() + _CHECK_INTERVAL_S
            finally:
                self._lock.release()
        if self._refusal:
            raise RedisFull(self._refusal, retry_after=5)

    def _look(self) -> str | None:
        info = server_info(self._server, "memory")
        most, used = int(info.get("maxmemory", "0")), int(info.get("used_memory", "0"))
        if most == 0 or used < MEMORY_SHARE * most or info.get("maxmemory_policy") != "noeviction":
            return None
        return f"Redis uses {used:,} of {most:,} bytes (maxmemory); free some, or raise the limit, and try again"
