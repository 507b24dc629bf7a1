"""The limit that Redis and redis-py set: one stream, one group, batches of 100. No record, no state, no index."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from typing import Any

import redis

from benchmarks.handler import handle
from benchmarks.systems import KIND, SLOTS, url

STREAM = GROUP = "bare"
BATCH = 100

_client = redis.Redis.from_url(url(), protocol=2)


def submit(payload: dict[str, Any]) -> None:
    _client.xadd(STREAM, {"payload": json.dumps(payload)})


def submit_many(payloads: list[dict[str, Any]]) -> None:
    pipeline = _client.pipeline(transaction=False)
    for payload in payloads:
        pipeline.xadd(STREAM, {"payload": json.dumps(payload)})
    pipeline.execute()


def work(batch: int) -> None:
    """Read, run, acknowledge and delete, for ever."""
    while True:
        found: Any = _client.xreadgroup(GROUP, str(threading.get_ident()), {STREAM: ">"}, count=batch, block=1000)
        if not found:
            continue
        entries = found[0][1]
        for _, fields in entries:
            handle(json.loads(fields[b"payload"]))
        ids = [entry for entry, _ in entries]
        pipeline = _client.pipeline(transaction=False)
        pipeline.xack(STREAM, GROUP, *ids)
        pipeline.xdel(STREAM, *ids)
        pipeline.execute()


def main() -> None:
    """One thread that runs no-ops where it reads them; a thread for each slot where handlers wait."""
    with contextlib.suppress(redis.ResponseError):  # it is there
        _client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    if os.environ.get(KIND) != "nap":
        work(BATCH)
    threads = [threading.Thread(target=work, args=(1,)) for _ in range(int(os.environ[SLOTS]))]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main()
