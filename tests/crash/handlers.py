"""The handlers of the tests here. Each writes its start and its end into the ledger."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from dtq import RetryableError, TaskContext, task
from tests.support.ledger import write, write_end

Payload = dict[str, Any]
HOUR_MS = 3_600_000
_lock = threading.Lock()
_lock.acquire()


@task("quick")
def quick(payload: Payload, ctx: TaskContext) -> int:
    write("start", ctx)
    write("end", ctx)
    return ctx.attempt


@task("nap", timeout_ms=HOUR_MS)
def nap(payload: Payload, ctx: TaskContext) -> int:
    """Sleep in small steps, so that an interruption is heard."""
    try:
        write("start", ctx)
        ends_at = time.monotonic() + payload["seconds"]
        while time.monotonic() < ends_at:
            time.sleep(0.01)
    finally:
        write_end(ctx)
    return ctx.attempt


@task("fails.once", max_attempts=3)
def fails_once(payload: Payload, ctx: TaskContext) -> int:
    write("start", ctx)
    write("end", ctx)
    if ctx.attempt == 1:
        raise RetryableError("once")
    return ctx.attempt


@task("hangs", timeout_ms=300)
def hangs(payload: Payload, ctx: TaskContext) -> int:
    """Not return, in one of the ways in which nothing can be done about it."""
    write("start", ctx)
    if ctx.attempt > 1:
        return ctx.attempt
    how = payload["how"]
    if how == "lock":
        _lock.acquire()
    elif how == "call":
        time.sleep(600)
    elif how == "deaf":
        while True:
            try:
                while True:
                    time.sleep(0.001)
            except BaseException:
                pass
    return 0


# --- in a process of their own ----------------------------------------------------------------------------------------


@task("isolated.quick", isolation="process")
def isolated_quick(payload: Payload, ctx: TaskContext) -> int:
    write("start", ctx)
    write("end", ctx)
    return os.getpid()


@task("isolated.nap", isolation="process", timeout_ms=HOUR_MS)
def isolated_nap(payload: Payload, ctx: TaskContext) -> int:
    return nap(payload, ctx)


@task("isolated.dies", isolation="process", max_attempts=2)
def isolated_dies(payload: Payload, ctx: TaskContext) -> int:
    if ctx.attempt > 1:
        return ctx.attempt
    how = payload["how"]
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(int(payload["code"]))
    elif how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "closes everything":
        os.closerange(3, 100)
        time.sleep(600)
    return 0


@task("isolated.holds", isolation="process", timeout_ms=HOUR_MS)
def isolated_holds(payload: Payload, ctx: TaskContext) -> int:
    """Start a child, then stay in one call of C that never lets another thread run."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(payload["file"], "w") as file:
        file.write(f"{os.getpid()} {child.pid}\n")
    ctypes.PyDLL(None).usleep(600_000_000)
    return 0


@task("forks")
def forks(payload: Payload, ctx: TaskContext) -> int:
    """Fork, and come back in both processes."""
    write("start", ctx)
    pid = os.fork()
    if pid == 0:
        if payload.get("raises"):
            raise ValueError("in the copy")
        return os.getpid()
    _, status = os.waitpid(pid, 0)
    write("end", ctx)
    return os.waitstatus_to_exitcode(status)


@task("isolated.forks", isolation="process")
def isolated_forks(payload: Payload, ctx: TaskContext) -> int:
    return forks(payload, ctx)


@task("leaves.threads")
def leaves_threads(payload: Payload, ctx: TaskContext) -> None:
    """Leave something behind that the interpreter waits for at its end."""
    from concurrent.futures import ThreadPoolExecutor

    ThreadPoolExecutor(1).submit(time.sleep, 600)


@task("fails.later", max_attempts=3)
def fails_later(payload: Payload, ctx: TaskContext) -> int:
    write("start", ctx)
    if ctx.attempt == 1:
        time.sleep(1.5)
        raise RetryableError("x" * 100)
    return ctx.attempt


@task("holds", timeout_ms=HOUR_MS)
def holds(payload: Payload, ctx: TaskContext) -> int:
    """Let no other thread of the process run for a while, the first time: a call of C that keeps the interpreter."""
    write("start", ctx)
    if ctx.attempt == 1:
        ctypes.PyDLL(None).usleep(int(payload["seconds"] * 1_000_000))
    write("end", ctx)
    return ctx.attempt


_real_time, _real_time_ns = time.time, time.time_ns
_clock_s = float(os.environ.get("TESTS_CLOCK_S", "0"))
if _clock_s:  # this host's clock is wrong by so much, for all that runs in this process
    time.time = lambda: _real_time() + _clock_s
    time.time_ns = lambda: _real_time_ns() + int(_clock_s * 1e9)
