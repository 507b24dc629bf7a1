"""The master as Sentinel names it, before and after a failover."""

from __future__ import annotations

import threading
import time

import pytest

from dtq.errors import ConfigurationError, RedisUnavailable
from dtq.redisio import Interrupted, Server
from tests.support.servers import free_port
from tests.support.topologies import Sentinels


@pytest.fixture
def sentinels(valkey):
    """A master and a sentinel."""
    topology = Sentinels(valkey.program)
    try:
        yield topology.start()
    finally:
        topology.remove()


@pytest.fixture
def failover(valkey):
    """A master, its replica, and a sentinel."""
    topology = Sentinels(valkey.program, replica=True)
    try:
        yield topology.start()
    finally:
        topology.remove()


def test_after_a_failover_the_new_master_is_found(failover, wait_until):
    server = Server.connect(failover.url, timeout_s=1)
    assert server.kind == "sentinel"
    assert server.call("SET", "k", "kept") == b"OK"
    assert server.call("WAIT", 1, 5000) == 1
    blocking = server.blocking()
    assert blocking.call("GET", "k", block_s=0) == b"kept"
    failover.master.kill()

    def answer() -> object:
        try:
            return server.call("SET", "after", "x")
        except RedisUnavailable as error:
            return error if error.context["reason"] not in ("unreachable", "timeout", "readonly") else None

    assert wait_until(answer, what="the failover", timeout_s=20) == b"OK"
    assert server.call("GET", "k") == b"kept"
    assert blocking.call("GET", "after", block_s=0) == b"x"
    assert str(failover.replica.port) in server._pool.route.where
    blocking.close()
    server.close()


def test_a_master_that_became_a_replica_is_left_for_the_one_that_sentinel_names(sentinels, server_factory):
    """REDIS-04: READONLY means that the address is old: the sentinels are asked again."""
    server = Server.connect(sentinels.url)
    assert server.call("SET", "k", 1) == b"OK"
    other = server_factory(tcp=True)
    sentinel = Server.connect(sentinels.sentinel.url)
    sentinel.call("SENTINEL", "REMOVE", sentinels.service)
    sentinel.call("SENTINEL", "MONITOR", sentinels.service, "127.0.0.1", other.port, 1)
    assert server.call("GET", "k") == b"1"  # nothing has been lost yet
    old = Server.connect(sentinels.master.url)
    old.call("REPLICAOF", "127.0.0.1", other.port)
    with pytest.raises(RedisUnavailable) as caught:
        server.call("SET", "k", 2)
    assert caught.value.context["reason"] == "readonly"
    assert server.call("SET", "k", 2) == b"OK"
    assert str(other.port) in server._pool.route.where
    for one in (server, sentinel, old):
        one.close()


def test_sentinels_that_are_away_or_know_nothing_are_passed_over(sentinels, server_factory):
    empty = server_factory(tcp=True, sentinel=True)
    away, there = f"127.0.0.1:{free_port()}", f"127.0.0.1:{sentinels.sentinel.port}"
    server = Server.connect(f"redis+sentinel://{away},127.0.0.1:{empty.port},{there}/main")
    assert server.call("PING") == b"PONG"
    server.close()
    unknown = Server.connect(f"redis+sentinel://{there}/other")
    with pytest.raises(RedisUnavailable, match="nobody knows master 'other'") as caught:
        unknown.call("PING")
    assert caught.value.context["reason"] == "unreachable"
    assert unknown.last_failure is not None


def test_without_any_sentinel_redis_is_unavailable_within_the_time_limit():
    sentinels = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    server = Server.connect(f"redis+sentinel://u:secret@{sentinels}/main", timeout_s=0.5)
    started = time.monotonic()
    with pytest.raises(RedisUnavailable) as caught:
        server.call("PING")
    assert time.monotonic() - started < 1
    assert caught.value.context["reason"] == "unreachable"
    assert "secret" not in str(caught.value)
    caller = server.blocking()
    with pytest.raises(RedisUnavailable):
        caller.call("PING", block_s=0)
    caller.interrupt()
    with pytest.raises(Interrupted):
        caller.call("PING", block_s=0)


def test_a_wrong_password_for_the_sentinels_is_said_plainly(sentinels):
    sentinel = Server.connect(sentinels.sentinel.url)
    sentinel.call("ACL", "SETUSER", "default", ">secret")
    sentinel.close()
    server = Server.connect(sentinels.url)
    with pytest.raises(RedisUnavailable) as caught:
        server.call("PING")
    assert caught.value.context["reason"] == "auth"
    right = Server.connect(f"{sentinels.url}?sentinel_password=secret")
    assert right.call("PING") == b"PONG"
    right.close()


def test_an_ordinary_server_named_as_a_sentinel_is_a_wrong_setting(server_factory):
    process = server_factory(tcp=True)
    with pytest.raises(ConfigurationError, match="is no sentinel"):
        Server.connect(f"redis+sentinel://127.0.0.1:{process.port}/main").call("PING")


def test_threads_that_need_the_address_at_once_ask_once(sentinels, flaky_proxy):
    proxy = flaky_proxy(sentinels.sentinel.url, tcp=True)
    proxy.delay_s = 0.1
    server = Server.connect(f"redis+sentinel://127.0.0.1:{proxy.url.rpartition(':')[2]}/main")
    threads = [threading.Thread(target=server.call, args=("PING",)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(proxy.commands) == 1
    server.close()


def test_a_thread_does_not_wait_without_end_for_another_one_that_asks():
    server = Server.connect(f"redis+sentinel://127.0.0.1:{free_port()}/main", timeout_s=0.1)
    with server._pool.route._asking, pytest.raises(RedisUnavailable, match="another thread is asking"):
        server.call("PING")


def test_sentinels_that_do_not_answer_share_the_time_limit_of_one_call(flaky_proxy, server_factory):
    process = server_factory(tcp=True)
    proxies = [flaky_proxy(process.url, tcp=True) for _ in range(3)]
    for proxy in proxies:
        proxy.hang()
    hosts = ",".join(proxy.url.removeprefix("redis://") for proxy in proxies)
    started = time.monotonic()
    with pytest.raises(RedisUnavailable) as caught:
        Server.connect(f"redis+sentinel://{hosts}/main", timeout_s=0.3).call("PING")
    assert 0.25 < time.monotonic() - started < 0.8
    assert caught.value.context["reason"] == "timeout"
