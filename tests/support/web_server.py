"""The web server as users start it: gunicorn in a process of its own, on a loopback port."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import PROJECT
from tests.support.servers import free_port
from tests.support.waiting import wait_until

STOP_LIMIT_S = 20.0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class WebServer:
    """gunicorn with dtq's configuration. Options are settings by field name."""

    def __init__(self, redis_url: str, *, project: Path = PROJECT, **settings: Any) -> None:
        self.port = free_port()
        self._directory = tempfile.TemporaryDirectory(prefix="dtq-web-")
        self.directory = Path(self._directory.name)
        variables = {"redis_url": redis_url, "api_port": self.port, **settings}
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("DTQ_")}
        self._environ |= {f"DTQ_{name.upper()}": str(value) for name, value in variables.items()}
        self._environ["PYTHONPATH"] = str(project)
        self.process = self.start_process()

    def start_process(self) -> subprocess.Popen[bytes]:
        """Start gunicorn; may be called again for a second one on the same port."""
        command = [sys.executable, "-m", "gunicorn", "-c", "python:dtq.web.gunicorn_conf", "app:app"]
        with open(self.directory / "log", "ab") as log:
            return subprocess.Popen(
                command, cwd=self.directory, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def wait_until_up(self) -> None:
        def answers() -> bool:
            assert self.process.poll() is None, f"the web server ended:\n{self.log}"
            with contextlib.suppress(OSError, http.client.HTTPException):
                return self.call("GET", "/health").status == 200
            return False

        wait_until(answers, what="the web server", timeout_s=20)

    def call(self, method: str, path: str, body: bytes | None = None, timeout_s: float = 10, **headers: str) -> Answer:
        """Make one request on a connection of its own. `Content_Type="..."` is the header Content-Type."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        with contextlib.closing(connection):
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())

    def submit(self, body: bytes = b'{"task_type": "echo"}') -> Answer:
        return self.call("POST", "/api/v1/tasks", body, Content_Type="application/json")

    def connect(self) -> socket.socket:
        """Return a connection that has sent nothing."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=15)

    def worker_pids(self) -> list[int]:
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End the server, in order if it will."""
        if self.process.poll() is None:
            self.terminate()
            try:
                self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._directory.cleanup()


@contextlib.contextmanager
def running_web(redis_url: str, **settings: Any) -> Iterator[WebServer]:
    """A started web server that answers."""
    server = WebServer(redis_url, **{"web_processes": 1, "web_threads": 4, "max_websockets": 0, **settings})
    try:
        server.wait_until_up()
        yield server
    finally:
        server.close()
