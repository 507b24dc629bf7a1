"""Redis stops, starts, forgets, loads, refuses: a running worker goes on."""

from __future__ import annotations

import logging
import re
import time

import pytest

from dtq.client import Client
from dtq.errors import RedisUnavailable
from dtq.settings import load_settings
from dtq.states import Status
from tests.support.workers import LocalWorker


@pytest.fixture
def start():
    made = []

    def make(url, **settings):
        settings.setdefault("visibility_timeout_s", 3)
        worker = LocalWorker(url, **settings)
        worker.runs = []
        worker.task("echo")(lambda payload, ctx: worker.runs.append(ctx.task_id))
        worker.task("nap")(lambda payload, ctx: time.sleep(payload["seconds"]))
        made.append(worker)
        return worker.start()

    yield make
    for worker in made:
        worker.stop(now=True)


@pytest.fixture
def connect():
    made = []

    def make(url):
        made.append(Client(settings=load_settings(env_file=None, redis_url=url)))
        return made[-1]

    yield make
    for client in made:
        client.close()


def errors(caplog):
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


def submit_when_up(client, task_type, payload=None):
    ends_at = time.monotonic() + 10
    while True:
        try:
            return client.submit(task_type, payload).task_id
        except RedisUnavailable:
            assert time.monotonic() < ends_at
            time.sleep(0.05)


@pytest.mark.slow
def test_redis_01_a_worker_takes_tasks_again_after_a_restart(server_factory, start, connect, caplog, wait_until):
    process = server_factory("valkey", aof=True)
    client = connect(process.url)
    worker = start(process.url)
    assert client.wait(client.submit("echo").task_id, 5).status is Status.SUCCEEDED
    running = client.submit("nap", {"seconds": 1.0}).task_id
    wait_until(lambda: client.get(running).status is Status.RUNNING, what="the start")
    for pause_s in (3.0, 0.2, 0.2):
        process.stop()
        time.sleep(pause_s)
        process.start()
        up_at = time.monotonic()
        task_id = submit_when_up(client, "echo")
        assert client.wait(task_id, 5).status is Status.SUCCEEDED
        assert time.monotonic() - up_at < 5
    assert client.wait(running, 10).status is Status.SUCCEEDED
    assert errors(caplog) == []
    assert len([one for one in caplog.records if "Redis is away" in one.getMessage()]) <= 3
    assert worker.runs.count(task_id) == 1


def test_redis_02_a_flushall_is_survived_without_noise(server, start, connect, caplog, wait_until):
    client = connect(server.safe_url)
    worker = start(server.safe_url)
    assert client.wait(client.submit("echo").task_id, 5).status is Status.SUCCEEDED
    caplog.clear()
    server.call("FLUSHALL")
    used = time.process_time()
    began = time.monotonic()
    ids = [client.submit("echo").task_id for _ in range(5)]
    for one in ids:
        assert client.wait(one, 5).status is Status.SUCCEEDED
    wait_until(client.queries.workers, what="the worker to register again")
    time.sleep(1.0)
    assert time.process_time() - used < 0.2 * (time.monotonic() - began) + 0.5
    assert len(errors(caplog)) <= 5
    assert worker.supervisor.fetcher.alive


def test_redis_02_entries_of_a_destroyed_group_are_run(server, start, connect):
    client = connect(server.safe_url)
    client.pause("default")
    start(server.safe_url)
    ids = [client.submit("echo").task_id for _ in range(10)]
    server.call("XGROUP", "DESTROY", client.broker.keys.stream("default", 5), "workers")
    client.resume("default")
    for one in ids:
        assert client.wait(one, 10).status is Status.SUCCEEDED


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param("LOADING Redis is loading", marks=pytest.mark.slow),
        "MISCONF cannot save",
        pytest.param("READONLY You can't write", marks=pytest.mark.slow),
    ],
)
def test_redis_10_a_redis_that_refuses_is_asked_once_a_second(server, flaky_proxy, start, connect, caplog, refusal):
    proxy = flaky_proxy(server.safe_url)
    client = connect(server.safe_url)
    worker = start(proxy.url)
    running = client.submit("nap", {"seconds": 0.5}).task_id
    time.sleep(0.2)
    proxy.answer(refusal, for_s=60)
    time.sleep(2.0)
    before = len(proxy.commands)
    time.sleep(3.0)
    asked = len([command for command in proxy.commands if b"EVALSHA" in command or b"XREADGROUP" in command])
    assert asked
    assert len(proxy.commands) - before <= 6
    proxy.stop_answering()
    assert client.wait(running, 5).status is Status.SUCCEEDED
    assert client.wait(client.submit("echo").task_id, 5).status is Status.SUCCEEDED
    assert errors(caplog) == []
    assert worker.supervisor.fetcher.alive


def test_redis_06_a_worker_that_starts_while_redis_loads_waits(server, flaky_proxy, start, connect, wait_until):
    proxy = flaky_proxy(server.safe_url)
    proxy.answer("LOADING Redis is loading the dataset in memory", for_s=60)
    worker = start(proxy.url)
    client = connect(server.safe_url)
    task_id = client.submit("echo").task_id
    time.sleep(1.0)
    assert worker.code is None
    proxy.stop_answering()
    assert client.wait(task_id, 5).status is Status.SUCCEEDED


def test_redis_11_lost_replies_lose_no_task_and_run_none_twice(server, flaky_proxy, start, connect):
    proxy = flaky_proxy(server.safe_url)
    client = connect(server.safe_url)
    worker = start(proxy.url)
    ids = []
    for _ in range(10):
        proxy.drop_next_reply(b"EVALSHA")
        ids += [client.submit("echo").task_id for _ in range(3)]
        time.sleep(0.15)
    for one in ids:
        assert client.wait(one, 15).status is Status.SUCCEEDED
    assert sorted(worker.runs) == sorted(ids)
    assert {client.get(one).attempt for one in ids} == {1}
    assert proxy.dropped >= 5


def test_redis_18_forgotten_scripts_are_loaded_again(server, start, connect, caplog):
    client = connect(server.safe_url)
    start(server.safe_url)
    for _ in range(5):
        task_id = client.submit("echo").task_id
        server.call("SCRIPT", "FLUSH")
        assert client.wait(task_id, 5).status is Status.SUCCEEDED
    assert errors(caplog) == []


def test_a_hanging_redis_does_not_hang_the_worker(server, flaky_proxy, start, connect):
    proxy = flaky_proxy(server.safe_url)
    client = connect(server.safe_url)
    start(proxy.url)
    assert client.wait(client.submit("echo").task_id, 5).status is Status.SUCCEEDED
    proxy.hang()
    task_id = client.submit("echo").task_id
    time.sleep(2.5)
    proxy.unhang()
    assert client.wait(task_id, 10).status is Status.SUCCEEDED


def test_redis_04_an_unblocked_reader_goes_on(server, start, connect, caplog):
    client = connect(server.safe_url)
    start(server.safe_url)
    assert client.wait(client.submit("echo").task_id, 5).status is Status.SUCCEEDED
    for line in server.call("CLIENT", "LIST").splitlines():
        if b"cmd=xreadgroup" in line:
            server.call("CLIENT", "UNBLOCK", line.split(b" ")[0].partition(b"=")[2], "ERROR")
    assert client.wait(client.submit("echo").task_id, 5).status is Status.SUCCEEDED
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) <= 1


def test_connections_that_are_killed_are_made_again(server, start, connect):
    client = connect(server.safe_url)
    start(server.safe_url)
    for _ in range(3):
        server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        task_id = submit_when_up(client, "echo")
        assert client.wait(task_id, 5).status is Status.SUCCEEDED


@pytest.mark.slow
def test_redis_12_an_idle_worker_logs_nothing_and_asks_redis_twice_a_second(server, start, caplog):
    start(server.safe_url, visibility_timeout_s=30)
    time.sleep(3)
    before, began = _sent(server), time.monotonic()
    time.sleep(15)
    assert (_sent(server) - before) / (time.monotonic() - began) < 2.3, "1.9 where nothing else runs"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def _sent(server):
    """What clients have sent that a worker sends: scripts, and reads of its bells."""
    statistics = server.call("INFO", "commandstats").decode()
    return sum(int(calls) for calls in re.findall(r"cmdstat_(?:evalsha|eval|xreadgroup|fcall):calls=(\d+)", statistics))
