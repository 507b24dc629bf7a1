"""The tools of the other tests are tested too: a wrong tool makes every test lie."""

from __future__ import annotations

import contextlib
import os
import socket
import time

import pytest

from dtq.errors import RedisUnavailable
from dtq.keys import Keys
from dtq.redisio import Server
from tests.support.lifetimes import check_keys
from tests.support.proxy import command_length, reply_length
from tests.support.servers import ServerProcess, find_program

KEYS = Keys("dtq")


@pytest.fixture
def through(server, flaky_proxy):
    """A proxy, and a client that talks through it with a short time limit."""
    proxy = flaky_proxy(server.safe_url)
    client = Server.connect(proxy.url, timeout_s=0.3)
    yield proxy, client
    client.close()


# --- isolation


def test_a_test_sees_no_dtq_variables_and_starts_in_an_empty_directory():
    assert not [name for name in os.environ if name.startswith("DTQ_")]
    assert os.listdir() == []


# --- servers


def test_each_kind_of_server_is_the_one_it_is_called(any_server, request):
    version = any_server.call("INFO", "server")
    kind = request.node.callspec.params["redis_server"]
    expected = {"valkey": b"server_name:valkey", "redis7": b"redis_version:7.", "redis62": b"redis_version:6.2"}
    assert expected[kind] in version


def test_every_test_gets_an_empty_server_with_usual_settings(server):
    assert server.call("DBSIZE") == 0
    assert server.call("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"0"]
    server.call("SET", "k", 1)
    server.call("CONFIG", "SET", "maxmemory", 10_000_000)


test_every_test_gets_an_empty_server_with_usual_settings_also_the_next = (
    test_every_test_gets_an_empty_server_with_usual_settings
)


def test_a_server_keeps_its_data_over_kill_and_start_when_it_has_an_aof(server_factory):
    process = server_factory(aof=True, tcp=True)
    started = time.monotonic()
    with contextlib.closing(Server.connect(process.url)) as client:
        client.call("SET", "k", "v")
        process.restart()
        with pytest.raises(RedisUnavailable):
            client.call("GET", "k")
        assert client.call("GET", "k") == b"v"
    process.kill()
    assert not process.running
    process.stop()
    process.start()
    assert time.monotonic() - started < 5


def test_a_paused_server_can_be_stopped(server_factory):
    process = server_factory()
    process.pause()
    assert not process.ping()
    process.stop()
    assert not process.running


def test_a_server_that_does_not_start_tells_its_log():
    process = ServerProcess(find_program("valkey") or "", options=("--no-such-option", "1"))
    with pytest.raises(AssertionError, match="no-such-option"):
        process.start()
    process.remove()
    assert not process.directory.exists()


def test_a_server_of_an_unknown_program_skips_the_test(server_factory, monkeypatch):
    monkeypatch.setitem(server_factory.__globals__, "find_program", lambda name: None)
    with pytest.raises(pytest.skip.Exception, match="no redis7 server"):
        server_factory("redis7")


# --- waiting


def test_wait_until_returns_the_first_truthy_value(wait_until):
    values = iter([0, "", None, "found", "later"])
    assert wait_until(lambda: next(values), what="a value") == "found"


def test_wait_until_names_what_it_waited_for_and_the_last_value(wait_until):
    with pytest.raises(AssertionError, match=r"waited 0.05 s for the moon; last value: \[\]"):
        wait_until(list, what="the moon", timeout_s=0.05)

    def fail() -> bool:
        raise AssertionError("not round yet")

    with pytest.raises(AssertionError, match="not round yet"):
        wait_until(fail, what="the moon", timeout_s=0.05)


# --- the proxy


def reason(client: Server, *command) -> str:
    with pytest.raises(RedisUnavailable) as caught:
        client.call(*command)
    return str(caught.value.context["reason"])


def test_a_proxy_that_is_not_told_otherwise_only_forwards(through):
    proxy, client = through
    assert client.call("SET", "k", b"x" * 200_000) == b"OK"
    assert client.pipeline([("GET", "k"), ("STRLEN", "k")]) == [b"x" * 200_000, 200_000]
    assert proxy.connections == 1
    assert len(proxy.commands) == 3


@pytest.mark.parametrize("tcp", [False, True])
def test_a_proxy_listens_on_either_kind_of_address_for_either_kind_of_server(tcp, server_factory, flaky_proxy):
    process = server_factory(tcp=not tcp)
    proxy = flaky_proxy(process.url, tcp=tcp)
    with contextlib.closing(Server.connect(proxy.url)) as client:
        assert client.call("PING") == b"PONG"


def test_a_dropped_reply_is_that_of_a_command_which_was_done(through, server):
    proxy, client = through
    proxy.drop_next_reply(matching=b"INCR", times=2)
    client.call("SET", "n", 0)
    for _ in range(2):
        assert reason(client, "INCR", "n") == "unreachable"
    assert client.call("INCR", "n") == 3
    assert proxy.dropped == 2


def test_a_doubled_command_is_done_twice_and_answered_once(through, server):
    proxy, client = through
    proxy.double_next(matching=b"INCR")
    assert [client.call("INCR", "n"), client.call("INCR", "n"), client.call("GET", "n")] == [1, 3, b"3"]
    proxy.double_next(matching=b"LRANGE")
    client.call("RPUSH", "list", "x" * 100_000, "y")
    assert client.pipeline([("LRANGE", "list", 0, -1), ("GET", "none")]) == [[b"x" * 100_000, b"y"], None]
    assert proxy.doubled == 2


def test_answers_of_the_proxy_replace_the_server_for_a_while(through, server):
    proxy, client = through
    proxy.answer("READONLY no", matching=b"SET", for_s=0.2)
    assert client.call("PING") == b"PONG"
    assert reason(client, "SET", "k", 1) == "readonly"
    assert server.call("EXISTS", "k") == 0
    time.sleep(0.2)
    assert client.call("SET", "k", 1) == b"OK"
    proxy.answer("LOADING soon")
    assert reason(client, "PING") == "loading"
    proxy.stop_answering()
    assert client.call("PING") == b"PONG"


def test_delays_and_hanging_hold_replies_back(through):
    proxy, client = through
    client.call("PING")
    proxy.delay_s = 0.1
    started = time.monotonic()
    client.call("PING")
    assert time.monotonic() - started > 0.09
    proxy.delay_s = 0
    proxy.hang()
    assert reason(client, "PING") == "timeout"
    proxy.unhang()
    assert client.call("PING") == b"PONG"


def test_connections_can_be_cut_half_closed_and_refused(through):
    proxy, client = through
    for misbehave in (proxy.cut, proxy.half_close):
        client.call("PING")
        misbehave()
        assert reason(client, "PING") == "unreachable"
    client.call("PING")
    proxy.refuse()
    proxy.refuse()
    assert client.call("PING") == b"PONG"
    proxy.cut()
    for _ in range(2):
        assert reason(client, "PING") == "unreachable"
    proxy.accept()
    proxy.accept()
    assert client.call("PING") == b"PONG"


def test_a_proxy_without_its_server_closes_what_it_takes(server_factory, flaky_proxy):
    process = server_factory()
    proxy = flaky_proxy(process.url)
    process.kill()
    with contextlib.closing(Server.connect(proxy.url)) as client:
        assert reason(client, "PING") == "unreachable"
        process.start()
        assert client.call("PING") == b"PONG"


def test_replies_are_told_apart_however_they_are_cut():
    replies = [b"+OK\r\n", b"-ERR no\r\n", b":7\r\n", b"$-1\r\n", b"$4\r\n\r\n$1\r\n", b"*-1\r\n", b"*0\r\n"]
    replies.append(b"*%d\r\n" % len(replies) + b"".join(replies))
    for reply in replies:
        assert [reply_length(reply[:end]) for end in range(len(reply))] == [None] * len(reply)
        assert reply_length(reply + b"+more\r\n") == len(reply)


def test_inline_commands_pass_the_proxy_too(through):
    proxy, _ = through
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(proxy.url.removeprefix("unix://"))
        client.sendall(b"PI")
        client.sendall(b"NG\r\n")
        assert client.recv(100) == b"+PONG\r\n"


def test_a_command_is_complete_with_its_last_byte_and_no_sooner():
    command = b"*2\r\n$4\r\nECHO\r\n$5\r\nab\r\nc\r\n"
    assert command_length(command + b"*1\r\n") == len(command)
    assert [command_length(command[:end]) for end in range(len(command))] == [None] * len(command)


# --- lifetimes


def test_keys_that_follow_their_rules_pass(server):
    server.call("SET", "dtq:task:1", "x", "EX", 100)
    server.call("SET", "dtq:queue:q:paused", "x")
    server.call("SET", "other:key", "x")
    for number in range(100):
        server.call("XADD", "dtq:stream:q:wake", "*", "f", number)
    check_keys(server, KEYS, [("task:.*", "ttl"), ("queue:.*", "always"), ("stream:.*:wake", "bounded")])
    check_keys(server, KEYS, [("task:.*", "bounded:1"), ("queue:.*", "bounded:1"), ("stream:.*", "bounded:100")])


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ([("tasks:.*", "ttl")], "task:1: no rule"),
        ([("task:.*", "ttl")], "task:1: never expires"),
        ([("task:.*", "bounded:2")], "task:1: 3 elements, allowed are 2"),
        ([("task:.*", "sometimes")], "no rule 'sometimes'"),
    ],
)
def test_a_key_that_breaks_its_rule_or_has_none_fails_with_its_name(server, rules, complaint):
    server.call("RPUSH", "dtq:task:1", 1, 2, 3)
    with pytest.raises(AssertionError, match=complaint):
        check_keys(server, KEYS, rules)


@pytest.mark.parametrize(
    "command",
    [
        ("SET", "{d}:k", "xx"),
        ("HSET", "{d}:k", "a", 1, "b", 2),
        ("SADD", "{d}:k", 1, 2),
        ("ZADD", "{d}:k", 1, "a", 2, "b"),
        ("XADD", "{d}:k", "*", "a", 1),
    ],
)
def test_every_type_of_key_is_counted(server, command):
    server.call(*command)
    check_keys(server, Keys("{d}"), [("k", "bounded:2")])
    with pytest.raises(AssertionError, match="elements"):
        check_keys(server, Keys("{d}"), [("k", "bounded:0"), ("k", "bounded:2")])
