"""What a chaos run stands on: a server with a proxy before it, and workers that are started again when they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from dtq.keys import Keys
from tests.support import PROJECT
from tests.support.ledger import VARIABLE
from tests.support.proxy import FlakyProxy
from tests.support.servers import ServerProcess, find_program

LEASE_S = 2.0
SETTINGS = {
    "DTQ_VISIBILITY_TIMEOUT_S": str(LEASE_S),
    "DTQ_HEARTBEAT_INTERVAL_S": "0.5",
    "DTQ_RETRY_BASE_DELAY": "0.1",
    "DTQ_RETRY_MAX_DELAY": "0.5",
    "DTQ_DRAIN_TIMEOUT_S": "2",
    "DTQ_TIMEOUT_GRACE_S": "0.3",
    "DTQ_WORKER_METRICS_PORT": "0",
    "DTQ_MAX_QUEUE_DEPTH": "100000",
    "DTQ_LOG_LEVEL": "WARNING",
}


class Fleet:
    """Everything that can be harmed, and the record of the harm: which process was dead or stopped when."""

    def __init__(self, directory: Path, workers: int) -> None:
        """directory: for the ledger and the logs of the workers."""
        program = find_program("valkey")
        if program is None:
            raise SystemExit("the embedded server program is not installed")
        # Every accepted write is on disk before it is answered, so that a killed server excuses no loss.
        self.server = ServerProcess(program, aof=True, options=("--appendfsync", "always"))
        self.server.start()
        self.proxy = FlakyProxy(self.server.url)
        self.keys = Keys()
        self.ledger = directory / "ledger"
        self.stopped: dict[int, list[float]] = {}
        """By pid: when it was stopped (SIGSTOP), if for long enough to lose its leases."""
        self.died: dict[int, float] = {}
        self._directory = directory
        self._closing = threading.Event()
        self.workers: list[subprocess.Popen[bytes]] = [self._start(number) for number in range(workers)]
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._keeper.start()

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        url = self.proxy.url if number % 2 else self.server.url  # half of them behind the proxy
        environment = {**os.environ, **SETTINGS, "DTQ_REDIS_URL": url, VARIABLE: str(self.ledger)}
        command = [sys.executable, str(PROJECT / "worker.py"), "--concurrency", "4", "--tasks", "tests.chaos.handlers"]
        with (self._directory / f"worker-{number}.log").open("ab") as log:
            return subprocess.Popen(command, env=environment, cwd=PROJECT, stdout=log, stderr=log)

    def _keep(self) -> None:
        while not self._closing.wait(0.1):
            for number, worker in enumerate(self.workers):
                if worker.poll() is not None:
                    self.died.setdefault(worker.pid, time.time())
                    self.workers[number] = self._start(number)

    def kill(self, number: int) -> None:
        """SIGKILL a worker."""
        worker = self.workers[number]
        worker.kill()
        worker.wait(10)
        self.died[worker.pid] = time.time()

    def terminate(self, number: int) -> None:
        """SIGTERM a worker."""
        self.workers[number].send_signal(signal.SIGTERM)

    def freeze(self, number: int, seconds: float) -> None:
        """SIGSTOP a worker, and let it go on after `seconds`."""
        worker = self.workers[number]
        if seconds > LEASE_S / 2:  # a renewal is a third of a lease old, or a little more
            self.stopped.setdefault(worker.pid, []).append(time.time())
        worker.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        worker.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End what was started."""
        self._closing.set()
        self._keeper.join(15)
        for worker in self.workers:
            worker.send_signal(signal.SIGCONT)
            worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait(10)
        self.proxy.close()
        self.server.remove()
