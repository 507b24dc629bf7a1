"""rediss:// with a certificate authority of the test's own, and client certificates."""

from __future__ import annotations

import time

import pytest

from dtq.errors import RedisUnavailable
from dtq.redisio import Interrupted, Server, pool
from tests.support.servers import ServerProcess, find_program, free_port
from tests.support.threads import in_thread
from tests.support.tls import make_certificates, tls_options


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls_port(certificates):
    """The port of a server that wants client certificates."""
    program = find_program("redis7")
    if program is None:
        pytest.skip("this machine has no Redis 7 that could speak TLS")
    port = free_port()
    options = tls_options(certificates, port)
    process = ServerProcess(program, options=options)
    try:
        try:
            process.start()
        except AssertionError:
            pytest.skip("the Redis 7 of this machine does not speak TLS")
        yield port
    finally:
        process.remove()


@pytest.fixture
def connect(tls_port, certificates):
    made = []

    def make(host: str = "localhost", *, ca: bool = True, client: bool = True, **options: str) -> Server:
        if ca:
            options["ssl_ca_certs"] = str(certificates / "ca.pem")
        if client:
            options |= {"ssl_certfile": f"{certificates}/server.pem", "ssl_keyfile": f"{certificates}/server.key"}
        query = "&".join(f"{name}={value}" for name, value in options.items())
        server = Server.connect(f"rediss://{host}:{tls_port}?{query}")
        made.append(server)
        return server

    yield make
    for server in made:
        server.close()


def test_commands_go_over_tls_with_both_sides_verified(connect, monkeypatch):
    server = connect()
    assert server.call("SET", "k", b"x" * 300_000) == b"OK"
    assert server.pipeline([("GET", "k")] * 3) == [b"x" * 300_000] * 3
    first = server.call("CLIENT", "ID")
    monkeypatch.setattr(pool, "IDLE_CHECK_S", 0.0)
    assert server.call("CLIENT", "ID") == first


@pytest.mark.parametrize(
    ("host", "options", "complaint"),
    [
        ("localhost", {"ca": False}, "certificate verify failed"),
        ("127.0.0.1", {}, "certificate verify failed"),
        ("localhost", {"client": False}, "localhost"),
    ],
)
def test_a_side_that_cannot_be_verified_is_unavailable(connect, host, options, complaint):
    with pytest.raises(RedisUnavailable, match=complaint) as caught:
        connect(host, **options).call("PING")
    assert caught.value.context["reason"] == "unreachable"


def test_the_check_of_the_name_or_of_all_can_be_switched_off(connect):
    assert connect("127.0.0.1", ssl_check_hostname="false").call("PING") == b"PONG"
    assert connect("127.0.0.1", ca=False, ssl_cert_reqs="none").call("PING") == b"PONG"


def test_a_wait_over_tls_can_be_interrupted(connect, wait_until):
    server = connect()
    caller = server.blocking()
    thread, outcome = in_thread(caller.call, "XREAD", "BLOCK", 10_000, "STREAMS", "s", "$", block_s=10)
    wait_until(lambda: b"blocked_clients:1" in server.call("INFO", "clients"), what="the reader to wait")
    started = time.monotonic()
    caller.interrupt()
    thread.join(5)
    assert time.monotonic() - started < 1
    assert isinstance(outcome[0], Interrupted)
    caller.reset()
    assert caller.call("PING", block_s=0) == b"PONG"
    caller.close()
