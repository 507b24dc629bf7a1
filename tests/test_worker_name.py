"""Two workers under one name would take each other's tasks for lost claims: a name belongs to one process at a time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from dtq.client import Client
from dtq.redisio import Server
from dtq.settings import load_settings
from dtq.states import Status
from dtq.worker.name import name_taken
from tests.support.engine import Engine
from tests.support.workers import LocalWorker, Workers


@contextmanager
def heartbeats(engine: Engine, **place: Any) -> Iterator[None]:
    """Be a worker w1 that ticks."""
    info = replace(engine.worker("w1"), **place)
    engine.broker.register(info, {})
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.02):
            engine.broker.tick(info, [], lead=False)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def ask(server: Server, watch_s: float = 0.6, name: str = "w1") -> str | None:
    return name_taken(Engine(server).broker, name, lambda: False, watch_s)


def test_a_name_is_taken_while_its_heartbeat_moves(server: Server) -> None:
    with heartbeats(Engine(server), host="elsewhere", pid=7):
        assert ask(server, 5.0) == "process 7 on elsewhere"
        assert ask(server, name="w2") is None


def test_a_name_is_free_once_its_heartbeat_stands_still(server: Server) -> None:
    engine = Engine(server)
    engine.register("w1")
    began = time.monotonic()
    assert ask(server) is None
    assert time.monotonic() - began >= 0.6
    assert name_taken(engine.broker, "w1", lambda: False, 60) is None, "its own"
    engine.broker.deregister("w1")
    assert ask(server, 60) is None


@pytest.mark.parametrize("older", [False, True], ids=["", "written by an older dtq"])
def test_a_name_is_free_at_once_when_its_process_is_gone_from_this_host(server: Server, older: bool) -> None:
    gone = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(gone, 0)
    engine = Engine(server)
    engine.broker.register(replace(engine.worker("w1"), host=os.uname().nodename, pid=gone), {})
    if older:
        server.call("HDEL", engine.keys.worker("w1"), "process")
    assert ask(server, 60) is None


def test_a_worker_whose_name_was_taken_ends_and_leaves_the_other_alone(
    server: Server, wait_until: Callable[..., Any]
) -> None:
    """It was frozen, or both began at the same moment. What it runs, it ends: the claims are its own still."""
    worker, release = LocalWorker(server.safe_url, "same"), threading.Event()
    worker.task("held")(lambda payload, ctx: release.wait(20))
    try:
        with Client(settings=load_settings(env_file=None, redis_url=server.safe_url)) as client:
            task_id = client.submit("held").task_id
            worker.start()
            wait_until(lambda: client.get(task_id).status is Status.RUNNING, what="the start")
            other = Engine(server)
            other.register("same")
            wait_until(lambda: worker.state.draining, what="the drain")
            release.set()
            assert client.wait(task_id, 10).status is Status.SUCCEEDED
            wait_until(lambda: worker.code is not None, what="the end")
            assert worker.code == 78
            assert not other.broker.tick(other.worker("same"), []).replaced
            assert [found.host for found in client.queries.workers()] == ["host"]
    finally:
        release.set()
        worker.stop(now=True)


@pytest.mark.slow
def test_a_second_worker_of_the_same_name_does_not_start_but_a_successor_does(server: Server, tmp_path: Any) -> None:
    workers = Workers(server.safe_url, tmp_path)
    try:
        first = workers.spawn("--name", "same")
        first.wait_for_log("slots, Redis")
        with Client(settings=load_settings(env_file=None, redis_url=server.safe_url)) as client:
            assert client.wait(client.submit("echo_task").task_id, 10).status is Status.SUCCEEDED
            second = workers.spawn("--name", "same")
            assert second.wait() == 78
            assert f"process {first.pid} on " in second.log
            assert "DTQ_WORKER_ID" in second.log
            first.kill()
            third = workers.spawn("--name", "same")
            assert client.wait(client.submit("echo_task").task_id, 10).status is Status.SUCCEEDED
            assert third.stop() == 0
    finally:
        workers.close()
