"""What stays of many tasks: nothing but what the retention keeps, and with small retentions nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dtq.client import Client
from dtq.errors import PermanentError, RetryableError
from dtq.keys import PARKED
from dtq.redisio import Server
from dtq.settings import load_settings
from dtq.states import Status
from dtq.worker import scheduler
from tests.support.dump import names
from tests.support.invariants import check_invariants
from tests.support.waiting import wait_until
from tests.support.workers import LocalWorker

SHORT: dict[str, Any] = {
    "task_retention_s": 1, "result_retention_s": 1, "idem_ttl_s": 1, "dlq_maxlen": 20, "events_maxlen": 1000,
    "visibility_timeout_s": 5, "heartbeat_interval_s": 0.5, "retry_base_delay": 0.01, "retry_max_delay": 0.02,
    "unknown_type_grace_s": 0, "max_queue_depth": 200_000, "max_scheduled": 200_000,
}  # fmt: skip
KINDS = ["good"] * 17 + ["again", "bad", "nobody.knows"]
LONG_LIVED = 10


class Crew:
    """Two workers on one server, in this process."""

    def __init__(self, url: str) -> None:
        self.release = threading.Event()
        self.workers = [LocalWorker(url, f"w{number}", worker_concurrency=12, **SHORT) for number in range(2)]
        for worker in self.workers:
            self._register(worker)
            worker.start()

    def _register(self, worker: LocalWorker) -> None:
        worker.task("good")(lambda payload, ctx: {"n": payload["n"]})
        worker.task("long")(lambda payload, ctx: self.release.wait(800))

        @worker.task("again", max_attempts=3)
        def again(payload: Any, ctx: Any) -> None:
            if ctx.attempt < 3:
                raise RetryableError("again")

        @worker.task("bad")
        def bad(payload: Any, ctx: Any) -> None:
            raise PermanentError("bad")


@pytest.fixture
def crew(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    monkeypatch.setattr(scheduler, "SWEEP_INTERVAL_S", 0.3)  # the same steps, at a test's pace
    log = logging.getLogger("dtq")
    level = log.level
    log.setLevel(logging.CRITICAL)  # a line for each of the thousands that fail would be kept
    made = Crew(server.safe_url)
    yield made
    made.release.set()
    for worker in made.workers:
        worker.stop(now=True)
    log.setLevel(level)


def _submission(number: int) -> dict[str, Any]:
    """A task of one of many fates, in one of the bands."""
    asked: dict[str, Any] = {
        "task_type": KINDS[number % 20], "payload": {"n": number}, "priority": number % 10,
        "metadata": {"ttl_seconds": 0.001 if number % 50 == 7 else 600},
    }  # fmt: skip
    if number % 4 == 0:
        asked["idempotency_key"] = f"k{number}"
    if number % 10 == 3:
        asked["delay_seconds"] = 0.2
    return asked


def _used_memory(server: Server) -> int:
    return int(server.call("INFO", "memory").split(b"used_memory:")[1].split(b"\r\n")[0])


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(20_000, marks=pytest.mark.slow),
        pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
    ],
)
def test_redis_21_what_has_ended_leaves_nothing_behind_however_many_there_were(
    server: Server, crew: Crew, number: int
) -> None:
    """Ten that run all the while are mixed in: their entries pin what lies around them."""
    settings = load_settings(env_file=None, redis_url=server.safe_url, **SHORT)
    with Client(settings=settings) as client:
        keys = client.broker.keys
        before = _used_memory(server)
        cancelled = 0
        for start in range(0, number, 1000):
            made = client.submit_many([_submission(n) for n in range(start, start + 1000)])
            if start * LONG_LIVED // number != (start - 1000) * LONG_LIVED // number:
                client.submit("long", {}, priority=start * LONG_LIVED // number, timeout_ms=3_600_000)
            for task in made[::100]:
                try:
                    client.cancel(task.task_id)
                    cancelled += 1
                except Exception:
                    continue
            wait_until(lambda: client.queries.queue("default").depth < 5_000, "room", 120)
        counts = wait_until(lambda: _ended(client), "the end of all", 120)
        assert counts[Status.RUNNING] == LONG_LIVED
        wait_until(lambda: server.call("ZCARD", keys.finished()) == 0, "the sweep", 60)
        wait_until(lambda: not _left(server, "idempotency") + _left(server, "result"), "the expiries", 10)
        letters = server.call("XLEN", keys.dead_letter())
        assert letters == 20
        for kind in ("task", "payload"):
            assert len(_left(server, kind)) == LONG_LIVED + letters
        streams = [keys.stream("default", band) for band in range(10)]
        assert sum(server.call("XLEN", stream) for stream in streams) == LONG_LIVED
        assert sum(server.call("MEMORY", "USAGE", stream) for stream in streams) < 5_000_000
        assert _used_memory(server) - before < 6_000_000
        crew.release.set()
        wait_until(lambda: client.queries.counts("default")[Status.RUNNING] == 0, "the end of the long ones", 20)
        state = check_invariants(server, keys, settings)
        submitted = sum(number for name, number in state.totals()["default"].items() if name.endswith(":submitted"))
        assert submitted == number + LONG_LIVED
    for worker in crew.workers:
        assert worker.stop() == 0
    for stream in streams:
        consumers = {row[1].decode() for row in server.call("XINFO", "CONSUMERS", stream, "workers")}
        assert consumers <= {PARKED}, f"{stream} keeps consumers that are gone"
    for kind in ("worker", "workers", "lock"):
        assert _left(server, kind) == []


def _ended(client: Client) -> dict[Status, int] | None:
    counts = dict(client.queries.counts("default"))
    waiting = counts[Status.PENDING] + counts[Status.QUEUED] + counts[Status.RETRYING]
    return counts if waiting == 0 and counts[Status.RUNNING] == LONG_LIVED else None


def _left(server: Server, kind: str) -> list[bytes]:
    return [name for name in names(server) if name.partition(b":")[2].startswith(kind.encode())]
