"""The handlers that are measured: as little as can be, so that what is measured is dtq."""

from __future__ import annotations

import time
from typing import Any

from dtq import TaskContext, task


@task("noop")
def noop(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Do nothing."""


@task("stamp")
def stamp(payload: dict[str, Any], ctx: TaskContext) -> float:
    """Return when the handler started, by this host's clock."""
    return time.time()


@task("nap")
def nap(payload: dict[str, Any], ctx: TaskContext) -> None:
    """Sleep as long as the payload says (seconds): a handler that waits for something."""
    time.sleep(payload["seconds"])
