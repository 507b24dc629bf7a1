"""The handlers of a chaos run. Each writes down when it starts and ends: one line, one write, safe from a kill."""

from __future__ import annotations

import os
import random
import time
from typing import Any

from dtq import RetryableError, TaskContext, task
from tests.support.ledger import write, write_end


def _work(seconds: float, ctx: TaskContext) -> None:
    try:
        write("start", ctx)
        end = time.monotonic() + seconds
        while time.monotonic() < end and not ctx.cancelled:
            time.sleep(min(0.02, seconds))
    finally:
        write_end(ctx)


@task("quick")
def quick(payload: dict[str, Any], ctx: TaskContext) -> str:
    """Take some milliseconds."""
    _work(random.uniform(0, 0.02), ctx)
    return ctx.task_id


@task("slow")
def slow(payload: dict[str, Any], ctx: TaskContext) -> str:
    """Take up to a second."""
    _work(random.uniform(0.2, 1.0), ctx)
    return ctx.task_id


@task("flaky", max_attempts=10)
def flaky(payload: dict[str, Any], ctx: TaskContext) -> str:
    """Fail two times of three."""
    _work(0.005, ctx)
    if random.random() < 0.66:
        raise RetryableError("not this time")
    return ctx.task_id


@task("isolated", isolation="process", max_attempts=10)
def isolated(payload: dict[str, Any], ctx: TaskContext) -> str:
    """Take a while in a process of its own, which dies now and then."""
    _work(random.uniform(0.0, 0.5), ctx)
    if random.random() < 0.1:
        os.abort()
    return ctx.task_id


@task("deaf", timeout_ms=500, max_attempts=10)
def deaf(payload: dict[str, Any], ctx: TaskContext) -> str:
    """Not hear of its time limit, the first time: its thread is written off and goes on beside its retry."""
    write("start", ctx)
    if ctx.attempt == 1:
        time.sleep(2.5)
    write("end", ctx)
    return ctx.task_id


@task("poison")
def poison(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Kill the worker."""
    write("start", ctx)
    os._exit(9)
