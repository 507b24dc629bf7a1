"""Waiting in Redis: time limits, interruption from another thread, reconnecting."""

from __future__ import annotations

import time

import pytest

from dtq.errors import RedisUnavailable
from dtq.redisio import CommandError, Interrupted, Server, blocking
from tests.support.threads import in_thread

WAIT = ("XREAD", "BLOCK", 10_000, "STREAMS", "stream", "$")


@pytest.fixture(params=["valkey", "memory"])
def blocking_server(request):
    return request.getfixturevalue("server" if request.param == "valkey" else "memory_server")


@pytest.fixture
def caller(blocking_server):
    caller = blocking_server.blocking()
    yield caller
    caller.close()


def is_blocked(server: Server) -> bool:
    if server.kind == "memory":
        time.sleep(0.1)
        return True
    return b"blocked_clients:1" in server.call("INFO", "clients")


def test_redis_12_a_wait_longer_than_the_time_limit_of_replies_is_no_failure(server):
    """REDIS-12: the socket's time limit follows the BLOCK, so an idle wait ends as Redis ends it, and is sent once."""
    short = Server.connect(server.safe_url, timeout_s=0.2)
    caller = short.blocking()
    started = time.monotonic()
    assert caller.call("XREAD", "BLOCK", 500, "STREAMS", "stream", "$", block_s=0.5) is None
    assert 0.45 < time.monotonic() - started < 2
    assert server.call("INFO", "commandstats").count(b"cmdstat_xread:calls=1,") <= 1
    assert short.last_failure is None
    caller.close()
    short.close()


def test_a_wait_without_an_event_gives_none_when_its_time_is_over(blocking_server, caller):
    started = time.monotonic()
    assert caller.call("XREAD", "BLOCK", 200, "STREAMS", "stream", "$", block_s=0.2) is None
    assert 0.15 < time.monotonic() - started < 2


def test_an_event_ends_the_wait(blocking_server, caller, wait_until):
    thread, outcome = in_thread(caller.call, *WAIT, block_s=10)
    wait_until(lambda: is_blocked(blocking_server), what="the reader to wait")
    blocking_server.call("XADD", "stream", "1-1", "f", "v")
    thread.join(5)
    assert outcome == [[[b"stream", [[b"1-1", [b"f", b"v"]]]]]]


def test_commands_that_do_not_wait_pass_too(blocking_server, caller):
    assert caller.call("ECHO", "x", block_s=0) == b"x"
    with pytest.raises(CommandError):
        caller.call("NOSUCHCOMMAND", block_s=0)
    assert caller.call("ECHO", "x", block_s=0) == b"x"


def test_an_interrupted_wait_ends_at_once_and_waits_are_refused_until_reset(blocking_server, caller, wait_until):
    thread, outcome = in_thread(caller.call, *WAIT, block_s=10)
    wait_until(lambda: is_blocked(blocking_server), what="the reader to wait")
    started = time.monotonic()
    caller.interrupt()
    thread.join(5)
    assert time.monotonic() - started < 1
    assert isinstance(outcome[0], Interrupted)
    started = time.monotonic()
    for _ in range(2):
        with pytest.raises(Interrupted):
            caller.call(*WAIT, block_s=10)
    assert time.monotonic() - started < 1
    assert blocking_server.last_failure is None
    caller.reset()
    assert caller.call("PING", block_s=0) == b"PONG"


def test_an_interrupt_between_two_waits_costs_nothing_once_it_is_reset(blocking_server, caller):
    assert caller.call("PING", block_s=0) == b"PONG"
    caller.interrupt()
    caller.reset()
    assert caller.call("PING", block_s=0) == b"PONG"
    assert blocking_server.last_failure is None


def test_an_interrupt_at_any_moment_ends_the_wait(blocking_server, caller):
    """However the interrupt falls, before, while or after the command is sent, the call does not sit out its time."""
    for number in range(60):
        thread, outcome = in_thread(caller.call, *WAIT, block_s=10)
        time.sleep(number * 0.00002)
        caller.interrupt()
        thread.join(5)
        assert not thread.is_alive()
        assert isinstance(outcome[0], Interrupted)
        caller.reset()


def test_a_closed_caller_interrupts_its_wait_and_stays_refused(blocking_server, caller, wait_until):
    thread, outcome = in_thread(caller.call, *WAIT, block_s=10)
    wait_until(lambda: is_blocked(blocking_server), what="the reader to wait")
    caller.close()
    caller.close()
    thread.join(5)
    assert isinstance(outcome[0], Interrupted)
    caller.reset()
    with pytest.raises(Interrupted):
        caller.call("PING", block_s=0)
    if blocking_server.kind != "memory":
        clients = ("INFO", "clients")
        wait_until(lambda: b"connected_clients:1\r" in blocking_server.call(*clients), what="the connection's end")


def test_a_lost_connection_is_made_anew_by_the_next_call(server_factory):
    process = server_factory()
    server = Server.connect(process.url)
    caller = server.blocking()
    thread, outcome = in_thread(caller.call, *WAIT, block_s=10)
    while not is_blocked(server):
        time.sleep(0.005)
    process.kill()
    thread.join(5)
    assert isinstance(outcome[0], RedisUnavailable)
    assert server.last_failure is not None
    with pytest.raises(RedisUnavailable):
        caller.call("PING", block_s=0)
    process.start()
    assert caller.call("PING", block_s=0) == b"PONG"
    caller.close()
    server.close()


def test_a_server_that_hangs_is_noticed_a_little_after_the_wait_should_have_ended(server_factory):
    process = server_factory()
    server = Server.connect(process.url, timeout_s=0.2)
    caller = server.blocking()
    assert caller.call("PING", block_s=0) == b"PONG"
    process.pause()
    started = time.monotonic()
    with pytest.raises(RedisUnavailable) as caught:
        caller.call("XREAD", "BLOCK", 200, "STREAMS", "stream", "$", block_s=0.2)
    assert 0.35 < time.monotonic() - started < 2
    assert caught.value.context["reason"] == "timeout"
    process.resume()
    assert caller.call("PING", block_s=0) == b"PONG"
    caller.close()
    server.close()


def test_a_failure_seen_by_a_short_call_renews_the_blocking_connection_too(server, flaky_proxy):
    """Redis may have moved without this connection having noticed: it must not go on waiting at the old place."""
    proxy = flaky_proxy(server.safe_url)
    through = Server.connect(proxy.url)
    caller = through.blocking()
    first = caller.call("CLIENT", "ID", block_s=0)
    assert caller.call("CLIENT", "ID", block_s=0) == first
    proxy.answer("READONLY You can't write against a read only replica.", matching=b"SET")
    with pytest.raises(RedisUnavailable):
        through.call("SET", "k", 1)
    assert caller.call("CLIENT", "ID", block_s=0) != first
    caller.close()
    through.close()


def test_an_interrupt_while_connecting_is_honoured_once_connected(server, flaky_proxy, wait_until):
    proxy = flaky_proxy(server.safe_url)
    through = Server.connect(f"{proxy.url}?db=1")
    caller = through.blocking()
    proxy.hang()
    thread, outcome = in_thread(caller.call, *WAIT, block_s=10)
    wait_until(lambda: proxy.commands, what="the SELECT of the new connection")
    caller.interrupt()
    proxy.unhang()
    thread.join(5)
    assert isinstance(outcome[0], Interrupted)
    caller.close()
    through.close()


def test_a_server_that_is_away_is_unavailable_for_waits_too(tmp_path):
    caller = Server.connect(f"unix://{tmp_path}/none").blocking()
    with pytest.raises(RedisUnavailable) as caught:
        caller.call("PING", block_s=0)
    assert caught.value.context["reason"] == "unreachable"
    caller.interrupt()
    with pytest.raises(Interrupted):
        caller.call("PING", block_s=0)
    caller.close()


def test_interrupting_a_wait_in_memory_that_does_not_end_is_given_up(memory_server, monkeypatch):
    monkeypatch.setattr(blocking, "_UNBLOCK_LIMIT_S", 0.05)
    caller = memory_server.blocking()
    caller._busy = True  # as if its connection were never made
    started = time.monotonic()
    caller.interrupt()
    assert time.monotonic() - started < 1
