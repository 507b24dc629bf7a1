"""Real worker processes within milliseconds: a program that has imported everything forks them.

`python -m tests.support.nursery` reads one JSON object a line: `{"environment": {...}, "log": path}` starts a worker,
`{"ended": pid}` asks for its exit code. Each is answered by one JSON line: the pid; the code, or null while it runs.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import PROJECT
from tests.support.ledger import VARIABLE
from tests.support.waiting import wait_until


class Worker:
    """One worker process of a nursery."""

    def __init__(self, nursery: Nursery, pid: int, log: Path) -> None:
        self.pid = pid
        self.code: int | None = None
        """Its exit code, negative for a signal, once `poll` has seen its end."""
        self._nursery = nursery
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def lines(self, *levels: str) -> list[str]:
        """The log lines of some levels, WARNING and worse by default."""
        wanted = levels or ("WARNING", "ERROR", "CRITICAL")
        return [line for line in self.log.splitlines() if line.split(" ", 2)[1:2] and line.split(" ", 2)[1] in wanted]

    def wait_for_log(self, text: str, timeout_s: float = 15.0) -> None:
        wait_until(lambda: text in self.log, f"{text!r} in the worker's log:\n{self.log[-2000:]}", timeout_s)

    def signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)  # its end is not taken in before we ask: the number is still this worker's

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        if self.code is None:
            self.code = self._nursery.ask({"ended": self.pid})
        return self.code

    def wait(self, timeout_s: float = 40.0) -> int:
        wait_until(lambda: self.poll() is not None, f"the end of a worker:\n{self.log[-2000:]}", timeout_s)
        assert self.code is not None
        return self.code

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()


class Nursery:
    """Starts workers of one module of tasks on one server."""

    def __init__(self, url: str, tasks: str, directory: Path, ledger: Path, **settings: Any) -> None:
        """tasks: a module. ledger: for handlers that write one. settings: of all workers, by field name."""
        self.workers: list[Worker] = []
        self._directory = directory
        self._environment = {
            "DTQ_REDIS_URL": url, "DTQ_TASKS": tasks, "DTQ_WORKER_METRICS_PORT": "0", VARIABLE: str(ledger),
            **_variables(settings),
        }  # fmt: skip
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DTQ_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.nursery"],
            env={**inherited, "PYTHONPATH": os.pathsep.join((str(PROJECT), str(directory)))},
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def spawn(self, worker_id: str, *, ready: bool = True, clock_s: float = 0.0, **settings: Any) -> Worker:
        """Start a worker. ready: wait until it takes signals. clock_s: by how much its clock is wrong."""
        log = self._directory / f"{worker_id}-{len(self.workers)}.log"
        log.touch()
        environment = {**self._environment, "DTQ_WORKER_ID": worker_id, **_variables(settings)}
        environment["TESTS_CLOCK_S"] = str(clock_s)
        pid = self.ask({"environment": environment, "log": str(log)})
        made = Worker(self, pid, log)
        self.workers.append(made)
        if ready:
            made.wait_for_log("slots, Redis")
        return made

    def ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


def _variables(settings: dict[str, Any]) -> dict[str, str]:
    return {f"DTQ_{name.upper()}": str(value) for name, value in settings.items()}


def _serve() -> None:
    for name in ("dtq.worker.launch", "dtq.worker.isolation", "worker", "redis", "hiredis"):
        importlib.import_module(name)
    ended: dict[int, int] = {}
    for line in sys.stdin:
        question = json.loads(line)
        if "ended" in question:
            pid = question["ended"]
            if pid not in ended:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    ended[pid] = os.waitstatus_to_exitcode(status)
            answer = ended.get(pid)
        else:
            answer = os.fork()
            if answer == 0:
                _be_worker(question)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _be_worker(question: dict[str, Any]) -> None:
    """Go on as `python worker.py` with this environment and this log. Never returns."""
    code = 70
    try:
        log = os.open(question["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for wanted, have in ((0, null), (1, log), (2, log)):
            os.dup2(have, wanted)
        os.environ.update(question["environment"])
        os.setpgid(0, 0)
        import worker

        code = worker.main([])
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve()
