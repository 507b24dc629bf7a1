"""What handlers write down of their runs, in a file that survives the death of their process, and how it is read."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtq import TaskContext

_now = time.time  # a test may set the clock of its process wrong later on

VARIABLE = "TESTS_LEDGER"
"""The environment variable that names the file."""


def write(what: str, ctx: TaskContext) -> None:
    """Write a line: one write, safe from a kill. what: "start" or "end"."""
    line = {"what": what, "task": ctx.task_id, "attempt": ctx.attempt, "pid": os.getpid(), "at": _now()}
    if "dtq.worker.child" in sys.orig_argv:
        line["worker"] = os.getppid()
    ledger = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(ledger, (json.dumps(line) + "\n").encode())
    os.close(ledger)


def write_end(ctx: TaskContext) -> None:
    """Write the line of the end, also when the handler is interrupted right here: a second one does no harm."""
    try:
        write("end", ctx)
    except BaseException:
        write("end", ctx)
        raise


@dataclass(slots=True, kw_only=True)
class Run:
    """One run of a handler, from its line at the start to that at the end, or to the death of its process."""

    pid: int
    worker: int
    """The worker's process: the same, unless the handler is isolated."""
    attempt: int
    start: float
    end: float
    ended: bool = False
    """Whether the handler itself came to its end."""


def read(ledger: Path, died: Mapping[int, float] | None = None) -> dict[str, list[Run]]:
    """Return the runs of every task in the order of their starts. died: when processes died, by pid."""
    runs: defaultdict[str, list[Run]] = defaultdict(list)
    open_runs: dict[tuple[str, int, int], Run] = {}
    for line in ledger.read_text().splitlines() if ledger.exists() else []:
        entry: dict[str, Any] = json.loads(line)
        name = (entry["task"], entry["pid"], entry["attempt"])
        if entry["what"] == "start":
            # without a line for its end, it ran until its process died at the latest
            worker = entry.get("worker", entry["pid"])
            end = (died or {}).get(worker, entry["at"])
            run = Run(pid=entry["pid"], worker=worker, attempt=entry["attempt"], start=entry["at"], end=end)
            runs[entry["task"]].append(run)
            open_runs[name] = run
        elif name in open_runs:
            run = open_runs.pop(name)
            run.end, run.ended = entry["at"], True
    return {task_id: sorted(found, key=lambda run: run.start) for task_id, found in runs.items()}
