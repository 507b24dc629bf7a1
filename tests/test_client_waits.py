"""Waiting for the end of a task: by asking now and then, or, when many wait, by listening together."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dtq.client import FEW_WAITS, Client
from dtq.errors import TaskNotFound
from dtq.redisio import Server
from dtq.settings import load_settings
from tests.support.engine import Engine
from tests.support.threads import in_thread
from tests.support.waiting import wait_until


@pytest.fixture
def engine(server: Server) -> Engine:
    return Engine(server)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(settings=load_settings(env_file=None, redis_url=server.safe_url), max_connections=64) as made:
        yield made


def listening() -> bool:
    return any(thread.name == "dtq-events" for thread in threading.enumerate())


def test_a_few_waits_ask_and_many_listen_with_one_reader(engine: Engine, client: Client) -> None:
    task_ids = engine.submit_many(30)
    claims = engine.claim()
    with ThreadPoolExecutor(30) as pool:
        few = [pool.submit(client.wait, task_id, 20) for task_id in task_ids[:FEW_WAITS]]
        time.sleep(0.2)
        assert not listening()
        many = [pool.submit(client.wait, task_id, 20) for task_id in task_ids[FEW_WAITS:]]
        wait_until(listening, what="the reader")
        for claim in claims:
            engine.commit(claim)
        ended = [waiting.result(10) for waiting in [*few, *many]]
    assert [task.task_id for task in ended] == task_ids
    assert {task.status.value for task in ended} == {"succeeded"}


def test_a_wait_that_listens_ends_with_its_task_with_its_time_or_with_its_process(
    engine: Engine, client: Client
) -> None:
    ended = engine.submit()
    engine.commit(engine.claim_one())
    assert client.wait_for_event(ended, 10).terminal
    task_id = engine.submit()
    began = time.monotonic()
    assert not client.wait_for_event(task_id, 0.3).terminal
    assert 0.3 <= time.monotonic() - began < 3
    stopping = threading.Event()
    waiter, outcome = in_thread(client.wait_for_event, task_id, 30, stopping)
    stopping.set()
    waiter.join(5)
    assert [task.status.value for task in outcome] == ["queued"]
    with pytest.raises(TaskNotFound):
        client.wait_for_event("0" * 32, 1)


def test_after_a_gap_a_wait_looks_at_its_task_again(engine: Engine, client: Client) -> None:
    """The end of the task is in its record, and its event was missed."""
    task_id = engine.submit()
    waiter, outcome = in_thread(client.wait_for_event, task_id, 30)
    wait_until(listening, what="the reader")
    wait_until(lambda: not client.events.idle, what="the wait")
    time.sleep(0.2)  # until it has looked once, which nothing tells
    engine.server.call("HSET", engine.keys.task(task_id), "status", "cancelled")
    client.events.tell_gap()
    waiter.join(5)
    assert [task.status.value for task in outcome] == ["cancelled"]
