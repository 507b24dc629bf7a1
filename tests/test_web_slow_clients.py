"""How long a request may take to come: what keeps a client that sends a byte now and then from keeping a thread."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http.errors import NoMoreData

from dtq.web import gthread
from dtq.web.arrival import GATHER_BYTES, is_ready
from dtq.web.gthread import Connection

HEAD = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\n"


@contextlib.contextmanager
def connected() -> Iterator[tuple[Connection, socket.socket]]:
    ours, client = socket.socketpair()
    with ours, client:
        worker: Any = SimpleNamespace(cfg=Config())
        connection = Connection(worker, ours, ("192.0.2.1", 1), ("192.0.2.2", 2))
        connection.init()
        yield connection, client


def drip(client: socket.socket, data: bytes, pause_s: float) -> threading.Thread:
    def send() -> None:
        with contextlib.suppress(OSError):
            for at in range(len(data)):
                client.sendall(data[at : at + 1])
                time.sleep(pause_s)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_a_head_or_a_body_that_drips_in_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gthread, "REQUEST_S", 0.3)
    with connected() as (connection, client):
        thread = drip(client, HEAD, 0.05)
        with pytest.raises(TimeoutError):
            next(connection.parser)
        client.close()
        thread.join(5)
    with connected() as (connection, client):
        client.sendall(HEAD)
        request = next(connection.parser)
        thread = drip(client, b"x" * 1_000, 0.02)
        with pytest.raises(TimeoutError):
            request.body.read(1_000)
        client.close()
        thread.join(5)


def test_a_large_body_has_the_time_that_its_bytes_take_and_the_next_request_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gthread, "REQUEST_S", 0.2)
    monkeypatch.setattr(gthread, "REQUEST_BYTES_PER_S", 100_000)  # so that 300 000 bytes may take three seconds more

    def send_slowly(client: socket.socket) -> None:
        for _ in range(10):
            client.sendall(b"x" * 30_000)
            time.sleep(0.05)

    with connected() as (connection, client):
        for _ in range(2):
            client.sendall(HEAD)
            connection.init()
            request = next(connection.parser)
            sender = threading.Thread(target=send_slowly, args=[client])
            sender.start()
            assert len(request.body.read(300_000)) == 300_000
            sender.join(5)
            time.sleep(0.3)


def test_a_request_that_is_gathered_has_the_time_of_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gthread, "REQUEST_S", 0.2)
    with connected() as (connection, client):
        client.sendall(HEAD[:10])
        assert not connection.gather()
        assert 0.1 < connection.patience_s() <= 0.2 + 1
        time.sleep(0.25)
        client.sendall(HEAD[10:20])
        assert not connection.gather()
        assert connection.patience_s() == 0.0
        client.shutdown(socket.SHUT_WR)
        assert connection.gather(), "an end is for the parser"
        connection.init()
        with pytest.raises(NoMoreData):
            next(connection.parser)


@pytest.mark.parametrize(
    ("held", "ready"),
    [
        (b"", False),
        (b"GET / HTTP/1.1\r\nHost: h\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", True),
        (b"GET / HTTP/1.1\nHost: h\n\n", True),
        (b"x" * GATHER_BYTES, True),
        (HEAD, False),
        (HEAD + b"x" * GATHER_BYTES, True),
        (b"POST / HTTP/1.1\r\ncontent-LENGTH:3\r\n\r\nab", False),
        (b"POST / HTTP/1.1\r\ncontent-LENGTH:3\r\n\r\nabc", True),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n", True),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n", True),
    ],
)
def test_a_thread_reads_what_is_whole_or_too_large_or_wants_an_answer_first(held: bytes, ready: bool) -> None:
    assert is_ready(held) == ready
