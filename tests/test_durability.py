"""DTQ_DURABLE_WRITES: what is answered is on disk, and where that cannot be, nothing pretends it is."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dtq.client import Client
from dtq.durability import Durability, patient_server
from dtq.errors import ConfigurationError, RedisUnavailable
from dtq.keys import Keys
from dtq.model import Task
from dtq.redisio import Server
from dtq.settings import load_settings
from tests.support.servers import find_program, free_port
from tests.support.topologies import Sentinels
from tests.support.waiting import wait_until
from tests.support.web import running_api
from tests.support.web_server import WebServer


def durable(url, **settings):
    return Client(settings=load_settings(env_file=None, redis_url=url, durable_writes=True, **settings))


def test_what_was_accepted_survives_a_kill_of_server_and_page_cache(server_factory):
    """Each answer came after an fsync: the append-only file, as it is on disk at that moment, has the task."""
    process = server_factory(aof=True)
    with durable(process.url) as client:
        began = time.monotonic()
        task = client.submit("echo", {"n": 1})
        assert time.monotonic() - began < 10
        files = list((process.directory / "appendonlydir").iterdir())
        assert any(task.task_id.encode() in file.read_bytes() for file in files)
        answers = client.submit_many([{"task_type": "echo"}] * 250)
        assert all(isinstance(answer, Task) for answer in answers)
        process.kill()
        process.start()
    with durable(process.url) as client:
        for answer in (task, answers[0], answers[249]):
            assert client.get(answer.task_id).task_type == "echo"


def test_without_an_append_only_file_nothing_is_promised(server, tmp_path, valkey):
    with durable(server.safe_url) as client:
        with pytest.raises(ConfigurationError, match="keeps no append-only file and has no replica"):
            client.submit("echo")
        answers = client.submit_many([{"task_type": "echo"}, {"task_type": "not this"}])
        assert [answer.code for answer in answers] == ["CONFIGURATION", "INVALID_TASK"]
    web = WebServer(server.safe_url, durable_writes="true")
    try:
        assert web.process.wait(20) != 0
        assert "DTQ_DURABLE_WRITES=true cannot be kept here" in web.log
        assert "Traceback" not in web.log
    finally:
        web.close()


def test_a_server_without_waitaof_needs_a_replica(server_factory):
    if find_program("redis7") is None:
        pytest.skip("this machine has no redis7 server")
    master = server_factory("redis7", tcp=True, aof=True, options=("--repl-diskless-sync-delay", "0"))
    with durable(master.url) as client:
        with pytest.raises(ConfigurationError, match="has no WAITAOF and has no replica"):
            client.submit("echo")
        server_factory("redis7", tcp=True, options=("--replicaof", f"127.0.0.1 {master.port}"))
        server = Server.connect(master.url)
        wait_until(lambda: b"state=online" in server.call("INFO", "replication"), what="the replica", timeout_s=20)
        assert client.submit("echo").status == "queued"
        server.close()


def test_a_replica_that_does_not_answer_makes_it_unsure(valkey, monkeypatch):
    monkeypatch.setattr("dtq.durability.PATIENCE_S", 1.0)
    topology = Sentinels(valkey.program, replica=True)
    try:
        topology.start()
        master = Server.connect(topology.master.url)
        master.pipeline([("CONFIG", "SET", "appendfsync", "always"), ("CONFIG", "SET", "appendonly", "yes")])
        wait_until(lambda: b"aof_rewrite_in_progress:0" in master.call("INFO", "persistence"), what="the file")
        master.close()
        with running_api(topology.master.url, durable_writes=True) as api:
            assert api.http.post("/api/v1/tasks", json={"task_type": "echo"}).status_code == 202
            topology.replica.pause()
            answer = api.http.post("/api/v1/tasks", json={"task_type": "echo", "idempotency_key": "k"})
            assert answer.status_code == 503
            assert answer.json["reason"] == "not_durable"
            assert "not known to be on disk" in answer.json["detail"]
            topology.replica.resume()
            again = api.http.post("/api/v1/tasks", json={"task_type": "echo", "idempotency_key": "k"})
            assert (again.status_code, again.json["code"]) == (409, "IDEMPOTENCY_IN_PROGRESS")
    finally:
        topology.remove()


def test_a_failover_between_write_and_confirmation_is_noticed(server_factory):
    process = server_factory(aof=True)
    durability = Durability(patient_server(process.url, "dtq"), Keys("dtq"))
    with pytest.raises(RedisUnavailable, match="1 of them are gone: Redis has failed over"):
        durability.confirm(["f" * 32])
    durability.close()


def test_many_who_wait_share_the_syncs(server_factory):
    """One sync a second serves all that wait: thirty submissions at once take no thirty seconds."""
    process = server_factory(aof=True)
    with durable(process.url) as client, ThreadPoolExecutor(30) as pool:
        client.submit("echo")
        began = time.monotonic()
        assert all(task.status == "queued" for task in pool.map(lambda n: client.submit("echo", {"n": n}), range(30)))
        assert time.monotonic() - began < 15


def test_memory_and_durable_writes_do_not_go_together():
    with pytest.raises(ConfigurationError, match="nothing of it is on a disk"):
        load_settings(env_file=None, redis_url="memory://", durable_writes=True)


def test_a_redis_that_is_away_is_a_503_as_ever(server_factory):
    with durable(f"redis://127.0.0.1:{free_port()}") as client, pytest.raises(RedisUnavailable) as caught:
        client.submit("echo")
    assert caught.value.context["reason"] == "unreachable"
