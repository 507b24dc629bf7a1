"""Tasks to try dtq with, one for each thing that a task can do. `DTQ_TASKS=examples.tasks` is the default."""

from __future__ import annotations

import time
from typing import Any

import dtq
from dtq import PermanentError, RetryableError, TaskContext, task

SLICE_S = 0.05
"""How often a task that waits looks whether it was cancelled."""


@task("echo_task")
def echo_task(payload: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
    """Return the payload."""
    return payload


@task("sleep_task")
def sleep_task(payload: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
    """Sleep for `seconds` (default 1) and end early when cancelled."""
    seconds = float(payload.get("seconds", 1.0))
    _sleep(seconds, ctx)
    return {"slept_s": seconds}


@task(
    "fibonacci_task",
    schema={
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 100_000}},
        "required": ["n"],
    },
)
def fibonacci_task(payload: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
    """Return the n-th Fibonacci number, as text: it has more digits than numbers in JSON. Its payload is checked."""
    first, second = 0, 1
    for step in range(payload["n"]):
        first, second = second, first + second
        if step % 1000 == 0:
            ctx.raise_if_cancelled()
    return {"n": payload["n"], "fibonacci": _digits(first)}


@task("flaky_task")
def flaky_task(payload: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
    """Fail `fail_times` times (default 2) in a way that another attempt may mend, then succeed."""
    fail_times = int(payload.get("fail_times", 2))
    if ctx.attempt <= fail_times:
        raise RetryableError(f"attempt {ctx.attempt} of a task that fails {fail_times} times")
    return {"attempts": ctx.attempt}


@task("always_fail_task", max_attempts=3)
def always_fail_task(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Fail at every attempt, until none is left: the task becomes a dead letter."""
    raise RetryableError(str(payload.get("message", "this task always fails")))


@task("permanent_fail_task")
def permanent_fail_task(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Fail in a way that no further attempt would mend: the task becomes a dead letter at once."""
    raise PermanentError(str(payload.get("message", "this cannot succeed")))


@task("counter_task")
def counter_task(payload: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
    """Count once per `key`, however often the task is run: the side effect is wrapped in `idempotent_operation`."""
    key = str(payload.get("key", ctx.task_id))
    counted = dtq.idempotent_operation(f"counter:{key}", 3600, lambda: {"counted_by": ctx.task_id, "at": time.time()})
    return {"key": key, "counted": counted}


@task("slow_task", timeout_ms=60_000)
def slow_task(payload: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
    """Work for `seconds` (default 10) in ten steps, and say how far it is."""
    seconds = float(payload.get("seconds", 10.0))
    for step in range(10):
        ctx.progress(step / 10, f"step {step + 1} of 10")
        _sleep(seconds / 10, ctx)
    ctx.progress(1.0, "done")
    return {"worked_s": seconds}


@task("progress_task")
def progress_task(payload: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
    """Go through `steps` steps (default 100) of `step_s` seconds (default 0.05), reporting each."""
    steps, step_s = int(payload.get("steps", 100)), float(payload.get("step_s", 0.05))
    for step in range(steps):
        ctx.progress((step + 1) / steps, f"{step + 1} of {steps}")
        ctx.raise_if_cancelled()
        time.sleep(step_s)
    ctx.log.info("all steps done")
    return {"steps": steps}


def _sleep(seconds: float, ctx: TaskContext) -> None:
    ends_at = time.monotonic() + seconds
    while (left_s := ends_at - time.monotonic()) > 0:
        ctx.raise_if_cancelled()
        time.sleep(min(SLICE_S, left_s))


def _digits(number: int) -> str:
    """Return a number in decimal, however long: `str` refuses more than 4 300 digits."""
    if number < 10**4000:
        return str(number)
    high, low = divmod(number, 10**4000)
    return _digits(high) + f"{low:04000d}"
