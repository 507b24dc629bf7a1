"""Runs a module as `python -m` does, and ends it when the process that started it is gone, even by SIGKILL.

    python -P leash.py PARENT_PID MODULE ARGUMENT...
    python -P leash.py PARENT_PID SCRIPT.py ARGUMENT...

A timer looks every half second: it needs no thread, so the program may fork, and its forks have no timer. What it runs
must leave SIGALRM alone; it gets one SIGTERM. -P keeps this file's directory off the path of modules.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from types import FrameType

LOOK_INTERVAL_S = 0.5


def main(arguments: list[str]) -> None:
    """Take what stands above; what is run is `__main__`, and its exit is this process's."""
    parent, target, *rest = arguments
    watch(int(parent))
    project = str(Path(__file__).resolve().parents[2])
    if project not in sys.path:
        sys.path.insert(0, project)
    sys.argv = [target, *rest]
    try:
        if target.endswith(".py"):
            runpy.run_path(target, run_name="__main__")
        else:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # an interpreter that ends has no handlers: the timer would kill it


def watch(parent: int) -> None:
    """Send this process a SIGTERM when its parent is no longer the process `parent`."""

    def look(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_INTERVAL_S, LOOK_INTERVAL_S)


if __name__ == "__main__":
    main(sys.argv[1:])
