"""Redis away, slow, restarted, or not in the mood: what a call raises, how soon, and what comes after."""

from __future__ import annotations

import re
import socket
import threading
import time

import pytest

from dtq.errors import RedisUnavailable
from dtq.redisio import CommandError, Server, pool
from dtq.redisio.errors import REASONS
from tests.support.servers import free_port
from tests.support.threads import in_thread


@pytest.fixture
def connect():
    made = []

    def make(url: str, **options):
        server = Server.connect(url, **options)
        made.append(server)
        return server

    yield make
    for server in made:
        server.close()


def refusal_of(server: Server, *command) -> RedisUnavailable:
    with pytest.raises(RedisUnavailable) as caught:
        server.call(*(command or ("PING",)))
    return caught.value


def test_cli_01_a_refused_connection_names_host_and_port_and_no_password(connect):
    port = free_port()
    server = connect(f"redis://user:s3cr%2Ft@127.0.0.1:{port}/0")
    assert server.last_failure is None
    started = time.monotonic()
    error = refusal_of(server)
    assert time.monotonic() - started < 1
    assert error.context["reason"] == "unreachable"
    assert f"127.0.0.1:{port}" in str(error)
    assert "s3cr" not in str(error)
    assert started <= server.last_failure <= time.monotonic()
    assert server.safe_url == f"redis://user:***@127.0.0.1:{port}/0"
    assert server.kind == "standalone"


def test_a_missing_socket_is_unreachable(connect, tmp_path):
    error = refusal_of(connect(f"unix://{tmp_path}/none"))
    assert error.context["reason"] == "unreachable"
    assert f"{tmp_path}/none" in str(error)


@pytest.fixture
def black_hole():
    """A loopback port that answers no connection attempt at all: its queue is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = []
        for _ in range(20):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            fillers.append(filler)
        yield address[1]
        for filler in fillers:
            filler.close()


def test_cli_01_a_black_hole_is_given_up_after_the_time_limit(connect, black_hole):
    started = time.monotonic()
    error = refusal_of(connect(f"redis://127.0.0.1:{black_hole}", timeout_s=0.3))
    assert 0.25 < time.monotonic() - started < 1
    assert error.context["reason"] == "timeout"


def test_the_time_limit_counts_once_for_all_addresses_of_a_name(connect, black_hole, monkeypatch):
    found = socket.getaddrinfo("127.0.0.1", black_hole, type=socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found * 4)
    started = time.monotonic()
    refusal_of(connect(f"redis://many.example:{black_hole}", timeout_s=0.3))
    assert time.monotonic() - started < 1


def test_a_reply_that_comes_too_late_is_never_given_to_the_next_command(server_factory, connect):
    process = server_factory()
    server = connect(process.url, timeout_s=0.2)
    server.call("SET", "n", 0)
    process.pause()
    started = time.monotonic()
    error = refusal_of(server, "INCR", "n")
    assert 0.15 < time.monotonic() - started < 1
    assert error.context["reason"] == "timeout"
    process.resume()
    assert server.call("ECHO", "mine") == b"mine"


def test_redis_11_a_command_whose_reply_was_lost_is_not_repeated(server, flaky_proxy, connect):
    proxy = flaky_proxy(server.safe_url)
    through = connect(proxy.url)
    proxy.drop_next_reply(matching=b"INCR")
    assert refusal_of(through, "INCR", "n").context["reason"] == "unreachable"
    assert proxy.dropped == 1
    assert server.call("GET", "n") == b"1"
    assert through.call("INCR", "n") == 2


def test_a_pipeline_cut_in_the_middle_leaves_no_reply_behind(server, flaky_proxy, connect):
    proxy = flaky_proxy(server.safe_url)
    through = connect(proxy.url)
    proxy.drop_next_reply(matching=b"two")
    with pytest.raises(RedisUnavailable):
        through.pipeline([("ECHO", "one"), ("ECHO", "two"), ("ECHO", "three")])
    assert through.call("ECHO", "four") == b"four"


def test_a_connection_costs_no_round_trip_beyond_what_the_url_asks_for(server, flaky_proxy, connect):
    proxy = flaky_proxy(server.safe_url)
    connect(proxy.url).call("PING")
    assert _names(proxy.commands) == ["PING"]
    proxy.commands.clear()
    connect(f"{proxy.url}?db=2&client_name=web").call("PING")
    assert _names(proxy.commands) == ["CLIENT", "SELECT", "PING"]


def _names(commands) -> list[str]:
    return [command.split(b"\r\n")[2].decode() for command in commands]


@pytest.mark.parametrize("prefix", REASONS)
def test_an_answer_that_means_not_now_is_unavailable_with_its_reason(prefix, server, flaky_proxy, connect):
    """REDIS-04, REDIS-06, REDIS-10: READONLY, LOADING, MISCONF and their like pass."""
    proxy = flaky_proxy(server.safe_url)
    through = connect(proxy.url)
    through.call("PING")
    detail = "866 127.0.0.1:7001" if prefix in ("MOVED", "ASK") else "for some reason"
    proxy.answer(f"{prefix} {detail}")
    error = refusal_of(through, "SET", "k", 1)
    assert error.context["reason"] == REASONS[prefix]
    assert f"{prefix} {detail}" in str(error)
    with pytest.raises(RedisUnavailable):
        through.pipeline([("PING",), ("PING",)])
    assert (through.last_failure is None) == (REASONS[prefix] == "auth")
    proxy.stop_answering()
    assert through.call("PING") == b"PONG"


def test_redis_04_a_connection_to_a_read_only_server_is_dropped(server, flaky_proxy, connect):
    proxy = flaky_proxy(server.safe_url)
    through = connect(proxy.url)
    through.call("PING")
    proxy.answer("READONLY You can't write against a read only replica.", for_s=60)
    refusal_of(through, "SET", "k", 1)
    proxy.stop_answering()
    through.call("PING")
    assert proxy.connections == 2


def test_only_the_call_that_meets_a_restart_fails_and_the_next_ones_work(server_factory, connect):
    process = server_factory(aof=True)
    server = connect(process.url)
    _hold_connections(server, 4)
    server.call("SET", "k", 1)
    process.restart()
    refusal_of(server)
    for _ in range(8):
        assert server.call("GET", "k") == b"1"


def _hold_connections(server: Server, count: int) -> None:
    """Make the pool open `count` connections at once."""
    barrier = threading.Barrier(count)

    def use() -> None:
        link = server._pool.take()
        barrier.wait(5)
        server._pool.give_back(link)

    threads = [threading.Thread(target=use) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_an_idle_connection_that_the_server_closed_makes_no_call_fail(server_factory, connect, monkeypatch):
    process = server_factory()
    server = connect(process.url)
    server.call("PING")
    process.restart()
    monkeypatch.setattr(pool, "IDLE_CHECK_S", 0.0)  # as if it had been idle for longer
    assert server.call("PING") == b"PONG"
    assert server.call("PING") == b"PONG"
    assert server.last_failure is None


def test_a_server_that_comes_back_is_used_again(server_factory, connect):
    process = server_factory(tcp=True)
    server = connect(process.url)
    server.call("PING")
    process.kill()
    refusal_of(server)
    first = server.last_failure
    refusal_of(server)
    assert server.last_failure > first
    process.start()
    assert server.call("PING") == b"PONG"


@pytest.mark.parametrize("way", ["cut", "half_close"])
def test_a_connection_that_breaks_while_it_is_idle_is_noticed(way, server, flaky_proxy, connect):
    proxy = flaky_proxy(server.safe_url)
    through = connect(proxy.url)
    through.call("PING")
    getattr(proxy, way)()
    refusal_of(through)
    assert through.call("PING") == b"PONG"


def test_calls_that_fail_together_count_as_one_loss(server, flaky_proxy, connect, wait_until):
    proxy = flaky_proxy(server.safe_url)
    through = connect(proxy.url)
    proxy.hang()
    calls = [in_thread(through.call, "ECHO", n) for n in range(4)]
    wait_until(lambda: len(proxy.commands) == 4, what="the commands to be under way")
    proxy.cut()
    for thread, outcome in calls:
        thread.join(5)
        assert isinstance(outcome[0], RedisUnavailable)
    proxy.unhang()
    assert through._pool.generation == 1
    assert through.call("PING") == b"PONG"


def test_something_that_is_not_redis_is_unreachable(connect):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            client, _ = listener.accept()
            client.recv(1000)
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            client.close()

        thread = threading.Thread(target=serve)
        thread.start()
        error = refusal_of(connect(f"redis://127.0.0.1:{listener.getsockname()[1]}"))
        thread.join()
    assert error.context["reason"] == "unreachable"


def test_a_server_without_room_for_another_client_says_so(server_factory, connect):
    process = server_factory(tcp=True, options=("--maxclients", "2"))
    holders = [connect(process.url) for _ in range(2)]
    for holder in holders:
        holder.call("PING")
    assert refusal_of(connect(process.url)).context["reason"] == "clients"


@pytest.mark.parametrize(
    ("userinfo", "allowed"),
    [
        ("", None),
        (":wrong-secret@", None),
        ("nobody:wrong-secret@", None),
        (":right%2Fsecret@", ["PING", "GET", "FLUSHALL"]),
        ("reader:reader-secret@", ["PING", "GET"]),
    ],
)
def test_a_wrong_user_or_password_is_said_plainly_and_not_shown(
    userinfo, allowed, redis_server, server_factory, connect
):
    """CLI-01: a wrong password is a matter of authentication, told apart from a server that is away."""
    process = server_factory(redis_server.program, tcp=True, options=("--requirepass", "right/secret"))
    admin = connect(process.url.replace("//", "//:right%2Fsecret@"))
    admin.call("ACL", "SETUSER", "reader", "on", ">reader-secret", "~*", "+ping", "+get")
    server = connect(process.url.replace("//", f"//{userinfo}"))
    for command in ["PING", ("GET", "k"), "FLUSHALL"]:
        words = (command,) if isinstance(command, str) else command
        if allowed is not None and words[0] in allowed:
            server.call(*words)
            continue
        error = refusal_of(server, *words)
        assert error.context["reason"] == "auth"
        assert f"127.0.0.1:{process.port}" in str(error)
        assert "secret" not in str(error)
    assert server.last_failure is None


def test_a_password_for_a_server_that_has_none_is_said_plainly(server, connect):
    error = refusal_of(connect(server.safe_url.replace("//", "//:some-secret@")))
    assert error.context["reason"] == "auth"
    assert "some-secret" not in str(error)


def test_a_database_that_does_not_exist_is_refused_by_the_server(server, connect):
    with pytest.raises(CommandError, match=re.escape("DB index is out of range")):
        connect(f"{server.safe_url}?db=9999").call("PING")


def test_the_database_of_the_url_is_used(server, connect):
    connect(f"{server.safe_url}?db=3").call("SET", "k", "three")
    assert server.call("GET", "k") is None
    assert connect(f"{server.safe_url}?db=3").call("GET", "k") == b"three"
