"""The measure: a redis-py loop over one stream, in batches of 100. No record, no state, no index."""

from __future__ import annotations

import time
from typing import Any

import redis

STREAM, GROUP = "bare", "bare"
BATCH = 100


def _connect(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, protocol=2)


def fill(url: str, number: int, payload: bytes) -> float:
    """Add `number` entries in pipelines of 100. Returns entries a second."""
    client = _connect(url)
    client.delete(STREAM)
    client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    started = time.perf_counter()
    for _ in range(0, number, BATCH):
        pipeline = client.pipeline(transaction=False)
        for _ in range(BATCH):
            pipeline.xadd(STREAM, {"payload": payload})
        pipeline.execute()
    return number / (time.perf_counter() - started)


def drain(url: str) -> float:
    """Read, acknowledge and delete everything. Returns entries a second."""
    client = _connect(url)
    done, started = 0, time.perf_counter()
    while True:
        reply: Any = client.xreadgroup(GROUP, "bare", {STREAM: ">"}, count=BATCH)
        if not reply:
            return done / (time.perf_counter() - started)
        ids = [entry for entry, _ in reply[0][1]]
        pipeline = client.pipeline(transaction=False)
        pipeline.xack(STREAM, GROUP, *ids)
        pipeline.xdel(STREAM, *ids)
        pipeline.execute()
        done += len(ids)
