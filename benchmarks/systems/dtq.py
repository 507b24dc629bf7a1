"""dtq itself: the handlers, and a client."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import dtq as package
from benchmarks import handler
from benchmarks.systems import url


@package.task("bench")
def run(payload: dict[str, Any], ctx: package.TaskContext) -> None:
    """Run what every system runs."""
    handler.handle(payload)


@package.task("compute")
def compute(payload: dict[str, Any], ctx: package.TaskContext) -> None:
    """Keep a processor busy in Python for `seconds` of its time, then sleep for `nap` seconds."""
    handler.mark(payload["sent"])
    until = time.thread_time() + payload["seconds"]
    while time.thread_time() < until:
        sum(range(1_000))
    time.sleep(payload.get("nap", 0.0))


@package.task("swallow")
def swallow(payload: dict[str, Any], ctx: package.TaskContext) -> None:
    """Take a payload of any size."""
    handler.mark(payload["sent"])


@cache
def _client() -> package.Client:
    return package.Client(url())


def submit(payload: dict[str, Any]) -> None:
    _client().submit("bench", payload)


def submit_many(payloads: list[dict[str, Any]]) -> None:
    _client().submit_many([{"task_type": "bench", "payload": payload} for payload in payloads])
