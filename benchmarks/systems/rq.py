"""RQ with its SimpleWorker, which runs one job at a time in its own process: the fastest that it has."""

from __future__ import annotations

from typing import Any

import redis
from rq import Queue

from benchmarks.systems import url

REDIS_URL = url()
"""What `rq worker -c` reads."""

_queue = Queue("bench", connection=redis.Redis.from_url(REDIS_URL))


def submit(payload: dict[str, Any]) -> None:
    _queue.enqueue("benchmarks.handler.handle", payload)


def submit_many(payloads: list[dict[str, Any]]) -> None:
    _queue.enqueue_many([Queue.prepare_data("benchmarks.handler.handle", (payload,)) for payload in payloads])
