"""What `flask dtq bench` has its worker run."""

from __future__ import annotations

import time
from typing import Any

from dtq import TaskContext, task


@task("bench_noop")
def noop(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Do nothing."""


@task("bench_stamp")
def stamp(payload: dict[str, Any], ctx: TaskContext) -> float:
    """Return when the handler began, on this machine's clock."""
    return time.time()
