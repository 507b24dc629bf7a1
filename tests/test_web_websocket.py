"""One WebSocket on a pair of sockets: pings, limits, and ends that cost nobody time."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from dtq.web import websocket
from dtq.web.websocket import Hangup, WebSocket

HANDSHAKE = {
    "HTTP_HOST": "x",
    "HTTP_UPGRADE": "websocket",
    "HTTP_CONNECTION": "Upgrade",
    "HTTP_SEC_WEBSOCKET_VERSION": "13",
    "HTTP_SEC_WEBSOCKET_KEY": "MDEyMzQ1Njc4OWFiY2RlZg==",
    "HTTP_SEC_WEBSOCKET_EXTENSIONS": "permessage-deflate",
}


class Pair:
    """Both ends of a WebSocket."""

    def __init__(self) -> None:
        served, self.client = socket.socketpair()
        self.served = served
        self.client.settimeout(5)
        self.stopping = threading.Event()
        self.ws = WebSocket({"gunicorn.socket": served, **HANDSHAKE}, self.stopping)
        self.ws.accept()
        head, _, rest = self.client.recv(65_536).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"extensions" not in head.lower()
        assert rest == b""
        self._wire = Connection(ConnectionType.CLIENT)

    def write(self, event: Event) -> None:
        self.client.sendall(self._wire.send(event))

    def read(self) -> list[Event]:
        """What the server has sent, waiting for the first of it; [] at the end of the connection."""
        data = self.client.recv(1_000_000)
        if not data:
            return []
        self._wire.receive_data(data)
        return list(self._wire.events())


def send_for_ever(pair: Pair) -> None:
    while True:
        pair.ws.send([b"x" * 10_000])


def wait_for_ever(pair: Pair) -> None:
    while True:
        pair.ws.wait(1)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.client.close()
    made.served.close()


def test_messages_come_in_and_frames_go_out_in_order(pair: Pair) -> None:
    pair.write(TextMessage(data="one"))
    assert pair.ws.wait(5) == ["one"]
    pair.write(TextMessage(data="tw", message_finished=False))
    pair.write(TextMessage(data="o"))
    pair.write(BytesMessage(data=b"three"))
    assert pair.ws.wait(5) == ["two", b"three"]
    pair.ws.send([b'{"n": 1}', '{"n": "ä"}'.encode()])
    sent = [json.loads(event.data) for event in pair.read() if isinstance(event, TextMessage)]
    assert sent == [{"n": 1}, {"n": "ä"}]
    assert pair.ws.wait(0) == []


def test_a_wait_ends_when_it_is_woken_and_not_before_its_time(pair: Pair) -> None:
    began = time.monotonic()
    assert pair.ws.wait(0.7) == []
    assert 0.7 <= time.monotonic() - began < 3
    threading.Timer(0.1, pair.ws.wake).start()
    assert pair.ws.wait() == []
    for _ in range(100_000):  # more than a pipe holds
        pair.ws.wake()
    assert pair.ws.wait() == []


def test_a_ping_of_the_client_is_answered_and_it_is_pinged_itself(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.write(Ping(payload=b"x"))
    assert pair.ws.wait(0.05) == []
    assert [event.payload for event in pair.read() if isinstance(event, Pong)] == [b"x"]
    monkeypatch.setattr(websocket, "PING_S", 0.3)
    pair.ws._next_ping = 0.0
    assert pair.ws.wait(0.05) == []
    [ping] = pair.read()
    assert isinstance(ping, Ping)
    pair.write(ping.response())
    assert pair.ws.wait(0.4) == []  # it has answered: pinged again, and not cut off
    with pytest.raises(Hangup, match="does not answer") as caught:
        pair.ws.wait(5)
    assert caught.value.code is None


@pytest.mark.parametrize(("size", "code"), [(5000, 1009), (4000, 1008)])
def test_a_message_that_is_too_big_and_a_flood_of_smaller_ones_end_it(pair: Pair, size: int, code: int) -> None:
    def talk() -> None:
        for _ in range(20):
            pair.write(TextMessage(data="x" * size))
            pair.ws.wait(1)

    with pytest.raises(Hangup) as caught:
        talk()
    pair.ws.finish(caught.value.code, caught.value.reason)
    assert [event.code for event in pair.read() if isinstance(event, CloseConnection)] == [code]


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"\x81\x05plain", b"\x82\xfe", b"GET / HTTP/1.1\r\n\r\n"])
def test_what_is_no_frame_ends_it_without_an_error(pair: Pair, sent: bytes) -> None:
    pair.client.sendall(sent)
    pair.client.shutdown(socket.SHUT_WR)
    with pytest.raises(Hangup):
        wait_for_ever(pair)


def test_a_client_that_does_not_read_is_cut_off_in_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "SEND_S", 0.3)
    pair.ws._protocol.sock.timeout_s = 0.3
    began = time.monotonic()
    with pytest.raises(Hangup, match="does not read") as caught:
        send_for_ever(pair)
    assert 0.3 <= time.monotonic() - began < 3
    pair.ws.finish(caught.value.code)
    assert pair.served.fileno() >= 0  # the web server closes it


def test_saying_goodbye_to_a_client_that_does_not_read_takes_a_bounded_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "GOODBYE_S", 0.2)
    pair.ws._protocol.sock.timeout_s = 0.1
    with pytest.raises(Hangup):
        send_for_ever(pair)
    began = time.monotonic()
    pair.ws.finish(1012, "the server restarts")
    assert time.monotonic() - began < 2


def test_a_stopping_process_waits_for_no_client_that_does_not_read(pair: Pair) -> None:
    threading.Timer(0.2, pair.stopping.set).start()
    began = time.monotonic()
    with pytest.raises(Hangup, match="does not read"):
        send_for_ever(pair)
    assert time.monotonic() - began < websocket.SEND_S - 1


def test_a_stopping_process_and_a_client_that_leaves_end_it(pair: Pair) -> None:
    threading.Timer(0.1, pair.stopping.set).start()
    began = time.monotonic()
    with pytest.raises(Hangup) as caught:
        pair.ws.wait()
    assert caught.value.code == 1012
    assert time.monotonic() - began < 3
    pair.stopping.clear()
    pair.write(CloseConnection(code=1000))
    with pytest.raises(Hangup, match="closed by the client"):
        pair.ws.wait()
    assert [type(event) for event in pair.read()] == [CloseConnection]
    pair.ws.finish(1000)
    pair.client.close()


def test_nothing_is_left_open_and_a_late_wake_harms_nobody() -> None:
    before = set(os.listdir("/proc/self/fd"))
    pair = Pair()
    pair.client.close()
    with pytest.raises(Hangup, match="gone"):
        pair.ws.wait()
    pair.ws.finish(None)
    pair.served.close()
    others: list[Any] = [os.pipe() for _ in range(4)]
    pair.ws.wake()
    for read, write in others:
        os.set_blocking(read, False)
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
        os.close(read)
        os.close(write)
    assert set(os.listdir("/proc/self/fd")) <= before
