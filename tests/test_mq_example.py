"""examples/replica.py: two API replicas hand work to each other's clients, and one of them is killed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dtq.redisio import Server
from tests.support import PROJECT
from tests.support.servers import free_port

TIMEOUT_S = 1.0


class Process:
    def __init__(self, url: str) -> None:
        self.port = free_port()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DTQ_")}
        self.process = subprocess.Popen(
            [sys.executable, PROJECT / "examples" / "replica.py", str(self.port)],
            env={
                **environment,
                "DTQ_REDIS_URL": url,
                "VISIBILITY_TIMEOUT_S": str(TIMEOUT_S),
                "PYTHONPATH": str(PROJECT),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert "replica" in self.process.stdout.readline()

    def call(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            content = response.read()
            return response.status, json.loads(content) if content else None
        finally:
            connection.close()

    def take(self, wait_s: float = 15) -> dict[str, Any]:
        status, message = self.call("GET", f"/next?wait={wait_s}")
        assert status == 200, message
        return dict(message)

    def done(self, key: str) -> int:
        return self.call("POST", f"/done/{key}")[0]


@pytest.fixture
def replica(server: Server) -> Iterator[Callable[[], Process]]:
    made: list[Process] = []

    def make() -> Process:
        made.append(Process(server.safe_url))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.wait(10)
        assert one.process.stdout is not None
        one.process.stdout.close()


def test_prim_01_work_reaches_the_clients_of_the_other_replica_and_outlives_the_one_it_landed_in(
    replica: Callable[[], Process],
) -> None:
    a, b = replica(), replica()
    for number in range(6):
        key = f"run-{number}"
        assert a.call("POST", "/jobs/usual", b"%d" % number, Idempotency_Key=key)[0] == 201
        assert b.call("POST", "/jobs/usual", b"again", Idempotency_Key=key)[0] == 200, "it was put before"
    lost = a.take()
    assert lost["deliveries"] == 1
    a.process.kill()  # with a message at its client, and perhaps one more ready
    killed = time.monotonic()
    assert b.call("POST", "/jobs/urgent", b"!")[0] == 201
    messages: dict[str, dict[str, Any]] = {}
    while len(messages) < 7:
        message = b.take()
        messages[message["key"]] = message
        assert b.done(message["key"]) == 200
    assert time.monotonic() - killed < TIMEOUT_S + 10
    assert sorted(message["data"] for message in messages.values()) == ["!", "0", "1", "2", "3", "4", "5"]
    assert messages[lost["key"]]["deliveries"] == 2
    assert b.call("GET", "/next?wait=0")[0] == 204
    assert b.call("POST", "/jobs/usual", b"", Idempotency_Key="run-0")[0] == 200, "what is done lies under a tombstone"
    assert b.done("unknown") == 410
    assert b.call("POST", "/elsewhere")[0] == 404


def test_prim_02_a_replica_that_ends_in_order_hands_back_at_once_what_is_not_done(
    replica: Callable[[], Process],
) -> None:
    a, b = replica(), replica()
    assert a.call("POST", "/jobs/usual", b"", Idempotency_Key="k")[0] == 201
    holder, other = (a, b) if a.call("GET", "/next?wait=0.2")[0] == 200 else (b, a)
    if holder is b:
        assert b.take()["key"] == "k"
    holder.process.send_signal(signal.SIGTERM)
    assert holder.process.wait(10) == 0
    assert other.take()["deliveries"] == 2
    assert other.done("k") == 200
