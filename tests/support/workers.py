"""Workers for tests: a unit of actors on a fake broker, and real worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dtq.broker import Broker
from dtq.model import Claim
from dtq.redisio import Server
from dtq.registry import Registry, task
from dtq.settings import load_settings
from dtq.streams import Doorbell, LeaderBell
from dtq.worker.committer import Committer
from dtq.worker.fetcher import Fetcher
from dtq.worker.pool import Pool
from dtq.worker.scheduler import Scheduler
from dtq.worker.state import WorkerState
from dtq.worker.supervisor import Supervisor, stacks
from dtq.worker.ticker import Ticker
from tests.support import PROJECT
from tests.support.fake_broker import FakeBell, FakeBroker, worker_state
from tests.support.waiting import wait_until


def make_claim(task_type: str = "echo", **fields: Any) -> Claim:
    """A claim with every field given."""
    values: dict[str, Any] = {
        "task_id": "0" * 31 + "1", "seq": 2, "attempt": 1, "task_type": task_type, "queue": "default", "priority": 5,
        "max_attempts": None, "timeout_ms": None, "failures": 0, "suspect": 0, "unknown_since": None,
        "payload": b"{}", "extra": b"", "waited_s": 0.0, "age_s": 0.0,
    }  # fmt: skip
    return Claim(**{**values, **fields})


class Unit:
    """The actors of one worker on a fake broker; nothing runs but what a test steps."""

    def __init__(self, **options: Any) -> None:
        """options: settings by name, and fields of WorkerState."""
        self.registry = Registry()
        self.broker = FakeBroker()
        options.setdefault("worker_concurrency", 2)
        self.state = worker_state(self.broker, self.registry, **options)
        self.doorbell = FakeBell(self.broker.bell)
        self.leader_bell = FakeBell(self.broker.leader_bell)
        self.supervisor = Supervisor(self.state, self.doorbell, self.leader_bell)  # type: ignore[arg-type]

    @property
    def pool(self) -> Pool:
        return self.supervisor.pool

    @property
    def committer(self) -> Committer:
        return self.supervisor.committer

    @property
    def fetcher(self) -> Fetcher:
        return self.supervisor.fetcher

    @property
    def ticker(self) -> Ticker:
        return self.supervisor.ticker

    @property
    def scheduler(self) -> Scheduler:
        return self.supervisor.scheduler

    def task(self, name: str, **options: Any) -> Any:
        """`@task` for this unit's registry."""
        return task(name, registry=self.registry, **options)

    def run_one(self) -> None:
        """Claim, run and record in the calling thread."""
        self.claim()
        while self.pool.step():
            pass
        self.commit()

    def claim(self) -> None:
        """Step the fetcher until it has claimed once more: a step may only hear the bell."""
        before = len(self.broker.named("claim"))
        for _ in range(3):
            self.fetcher.step()
            if len(self.broker.named("claim")) > before:
                return
        raise AssertionError("the fetcher did not claim")

    def commit(self) -> None:
        """Record what there is."""
        self.committer.step(timeout_s=0)

    def stop(self) -> None:
        """End whatever threads a test started."""
        self.broker.away = self.broker.full = False
        self.supervisor.stop()
        self.supervisor.stop()
        self.supervisor.shut_down()


class WorkerProcess:
    """`python worker.py` as a child of the test."""

    def __init__(
        self,
        url: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        project: Path = PROJECT,
    ) -> None:
        directory = Path(cwd) if cwd is not None else Path.cwd()
        self._log_path = directory / f"worker-{os.urandom(4).hex()}.log"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DTQ_")}
        variables = {"DTQ_REDIS_URL": url, "PYTHONPATH": str(project), **(environment or {})}
        with open(self._log_path, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(project / "worker.py"), *arguments],
                env={**inherited, **{name: value for name, value in variables.items() if value}},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self._log_path.read_text(errors="replace")

    def wait_for_log(self, text: str, timeout_s: float = 10.0) -> None:
        wait_until(lambda: text in self.log, f"{text!r} in the worker's log:\n{self.log[-2000:]}", timeout_s)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: no chance to tidy up."""
        self.process.kill()
        self.process.wait(10)

    def stop(self, timeout_s: float = 40.0) -> int:
        """SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def wait(self, timeout_s: float = 20.0) -> int:
        return self.process.wait(timeout_s)


class Workers:
    """Starts worker processes on one server and ends them with the test."""

    def __init__(self, url: str, cwd: Path | None = None) -> None:
        self.url = url
        self._cwd = cwd
        self._made: list[WorkerProcess] = []

    def spawn(
        self, *arguments: str, tasks: str = "examples.tasks", ready: bool = True, **settings: Any
    ) -> WorkerProcess:
        """Start a worker. settings: DTQ_* variables by the names of their fields."""
        environment = {f"DTQ_{name.upper()}": str(value) for name, value in settings.items()}
        environment.setdefault("DTQ_TASKS", tasks)
        environment.setdefault("DTQ_WORKER_METRICS_PORT", "0")
        made = WorkerProcess(self.url, *arguments, environment=environment, cwd=self._cwd)
        self._made.append(made)
        if ready:
            made.wait_for_log("slots, Redis", timeout_s=30)
        return made

    def close(self) -> None:
        """Kill what still runs, and its children."""
        for worker in self._made:
            if worker.process.poll() is None:
                worker.kill()


def outcomes(broker: FakeBroker, ids: Iterable[str]) -> Sequence[str]:
    """The kinds of the recorded outcomes of tasks."""
    return [broker.outcome(task_id).kind for task_id in ids]


@contextmanager
def units(*, echo: bool = False) -> Iterator[Callable[..., Unit]]:
    """What makes units, each to be stopped at the end; its options are those of Unit. echo: each has that handler."""
    made: list[Unit] = []

    def unit(**options: Any) -> Unit:
        made.append(Unit(**options))
        if echo:
            made[-1].task("echo")(lambda payload, ctx: payload)
        return made[-1]

    yield unit
    for one in made:
        one.stop()


class LocalWorker:
    """A whole worker in threads of the test's process, on a real server."""

    def __init__(self, url: str, worker_id: str = "local", **settings: Any) -> None:
        settings.setdefault("worker_concurrency", 4)
        self.settings = load_settings(env_file=None, redis_url=url, worker_id=worker_id, **settings)
        self.registry = Registry()
        self.server = Server.connect(url, namespace=self.settings.namespace)
        broker = Broker(self.server, self.settings)
        self.state = WorkerState(
            worker_id=worker_id,
            settings=self.settings,
            registry=self.registry,
            broker=broker,
            queues=self.settings.queues,
            concurrency=self.settings.worker_concurrency,
        )
        self._bells = (Doorbell(self.server, broker.keys, self.state.queues), LeaderBell(self.server, broker.keys))
        self.supervisor = Supervisor(self.state, *self._bells)
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run, name=f"worker {worker_id}", daemon=True)

    def task(self, name: str, **options: Any) -> Any:
        """`@task` for this worker's registry."""
        return task(name, registry=self.registry, **options)

    def start(self) -> LocalWorker:
        self._thread.start()
        return self

    def stop(self, *, now: bool = False) -> int:
        """End it; returns the exit code. now: without draining."""
        if self._thread.is_alive():
            self.supervisor.stop()
            if now:
                self.supervisor.stop()
        if self._thread.ident is None:
            self.code = 0  # never started
        else:
            self._thread.join(40)
        assert not self._thread.is_alive(), stacks()
        for bell in self._bells:
            bell.close()
        self.server.close()
        assert self.code is not None
        return self.code

    def _run(self) -> None:
        self.code = self.supervisor.run()
