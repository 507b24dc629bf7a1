"""What one look at Redis finds: each part is read when a page first asks for it, and shared by all that is drawn."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from dtq.attention import Finding, findings
from dtq.charts import Hour
from dtq.model import WorkerInfo
from dtq.queries import QueueInfo
from dtq.serverinfo import server_info
from dtq.states import Status

if TYPE_CHECKING:
    from dtq.client import Client

CLOCK_FRESH_S = 30.0


class Reads:
    """One look. Nothing is kept from one look to the next but what cannot change."""

    def __init__(self, client: Client, clock: Clock) -> None:
        """clock: tells Redis's time."""
        self.client = client
        self.now = clock.now(client)
        """Seconds since the epoch on Redis's clock, when this look began."""

    @cached_property
    def queues(self) -> Sequence[QueueInfo]:
        """Every queue, by name."""
        return self.client.queries.queues()

    @cached_property
    def workers(self) -> Sequence[WorkerInfo]:
        """Every live worker, by id."""
        return self.client.queries.workers()

    @cached_property
    def hour(self) -> Hour:
        """What happened in the last hour, in all queues."""
        return self.client.charts.hour([queue.queue for queue in self.queues])

    @cached_property
    def memory(self) -> Mapping[str, str]:
        """What Redis says of its memory."""
        return server_info(self.client.server, "memory")

    @cached_property
    def findings(self) -> Sequence[Finding]:
        """What somebody should look at, the worst first."""
        most = self.client.settings.max_queue_depth
        return findings(self.queues, self.workers, self.hour, self.memory, self.now, max_depth=most)

    @cached_property
    def totals(self) -> Mapping[Status, int]:
        """How many tasks are in each status, over all queues."""
        return {status: sum(queue.counts[status] for queue in self.queues) for status in Status}


class Clock:
    """Redis's clock, asked once in a while: hosts whose clocks differ show the same ages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead_s = 0.0
        self._asked_at = -CLOCK_FRESH_S

    def now(self, client: Client) -> float:
        """Return seconds since the epoch. Raises RedisUnavailable."""
        with self._lock:
            fresh = time.monotonic() - self._asked_at < CLOCK_FRESH_S
        if not fresh:
            at = client.server.now()
            with self._lock:
                self._ahead_s = at - time.time()
                self._asked_at = time.monotonic()
        return time.time() + self._ahead_s
