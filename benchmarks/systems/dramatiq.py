"""dramatiq with its Redis broker, threads, no results (its default)."""

from __future__ import annotations

from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.handler import handle
from benchmarks.systems import url

dramatiq.set_broker(RedisBroker(url=url()))


@dramatiq.actor(queue_name="bench")
def run(payload: dict[str, Any]) -> None:
    handle(payload)


def submit(payload: dict[str, Any]) -> None:
    run.send(payload)
