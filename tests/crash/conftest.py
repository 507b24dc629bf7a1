"""What the tests of faults need: workers that start within milliseconds, a ledger of what ran, servers to harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtq.client import Client
from dtq.errors import RedisFull, RedisUnavailable
from dtq.model import Task
from dtq.redisio import Server
from dtq.settings import load_settings
from dtq.states import Status
from tests.support import ledger as ledgers
from tests.support.nursery import Nursery, Worker
from tests.support.waiting import wait_until


class Field:
    """A server, a client straight to it, and worker processes whose runs are written down."""

    def __init__(self, url: str, nursery: Nursery, ledger: Path) -> None:
        self.url = url
        self.nursery = nursery
        self.client = Client(settings=load_settings(env_file=None, redis_url=url, max_queue_depth=100_000))
        self._ledger = ledger

    @property
    def keys(self) -> Any:
        return self.client.broker.keys

    def spawn(self, worker_id: str = "one", **settings: Any) -> Worker:
        return self.nursery.spawn(worker_id, **settings)

    def submit(self, task_type: str, payload: dict[str, Any] | None = None, **options: Any) -> str:
        return self.client.submit(task_type, payload, **options).task_id

    def submit_when_up(self, task_type: str = "quick", payload: dict[str, Any] | None = None) -> str:
        """Submit as soon as Redis takes it."""

        def attempt() -> str | None:
            try:
                return self.submit(task_type, payload)
            except (RedisUnavailable, RedisFull):
                return None

        return wait_until(attempt, "a submission that is taken", 20)  # type: ignore[return-value]

    def task(self, task_id: str) -> Task:
        return self.client.get(task_id)

    def done(self, task_id: str, timeout_s: float = 20.0) -> Task:
        """Wait until a task has succeeded; return it."""
        task = self.client.wait(task_id, timeout_s)
        assert task.status is Status.SUCCEEDED, task
        return task

    def running(self, task_id: str) -> None:
        """Wait until a handler has begun: what was only claimed may still be handed back."""
        wait_until(lambda: any(not run.ended for run in self.runs().get(task_id, [])), "the start", 15)

    def runs(self) -> dict[str, list[ledgers.Run]]:
        """What ran, by task."""
        return ledgers.read(self._ledger)

    def close(self) -> None:
        self.nursery.close()
        self.client.close()


FieldFactory = Callable[..., Field]


@pytest.fixture
def make_field(tmp_path: Path) -> Iterator[FieldFactory]:
    """`make_field(url, **settings)`: settings of all its workers; `client_url` for the client's own way."""
    made: list[Field] = []

    def make(url: str, *, client_url: str = "", **settings: Any) -> Field:
        directory = tmp_path / f"field-{len(made)}"
        directory.mkdir()
        ledger = directory / "ledger"
        common = {"visibility_timeout_s": 2, "retry_base_delay": 0.1, "retry_max_delay": 0.2, **settings}
        nursery = Nursery(url, "tests.crash.handlers", directory, ledger=ledger, **common)
        made.append(Field(client_url or url, nursery, ledger))
        return made[-1]

    yield make
    for field in made:
        field.close()


@pytest.fixture
def field(server: Server, make_field: FieldFactory) -> Field:
    """Workers on the server of the test session."""
    return make_field(server.safe_url)
