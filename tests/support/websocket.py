"""A WebSocket client that a test can make as rude as it likes."""

from __future__ import annotations

import json
import socket
import struct
import time
from types import TracebackType
from typing import Any, Self

from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, Event, Pong, TextMessage

from tests.support.waiting import wait_until

RESET = struct.pack("ii", 1, 0)


class SocketClient:
    """A connection to `ws://127.0.0.1:<port><path>`. Nothing is read before it is asked for."""

    def __init__(self, port: int, path: str = "/ws/events", *, receive_buffer: int = 0, **headers: str) -> None:
        """receive_buffer: of the kernel, in bytes. headers: `X_API_Key="..."` is the header X-API-Key."""
        self.connection = socket.socket()
        if receive_buffer:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.connection.settimeout(10)
        self.connection.connect(("127.0.0.1", port))
        given = {"Host": f"127.0.0.1:{port}", **{name.replace("_", "-"): value for name, value in headers.items()}}
        handshake = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
        }
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in (handshake | given).items())]
        self.connection.sendall("\r\n".join([*lines, "", ""]).encode())
        head, _, rest = self._head().partition(b"\r\n\r\n")
        self.status = int(head.split()[1])
        self.headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head.decode().split("\r\n")[1:])
        }
        self.body = b""
        self.close_code: int | None = None
        """What the server closed with; None while it is open, and when it was cut off."""
        self.ended = False
        self._messages: list[dict[str, Any]] = []
        self._rest = b""
        self._wire = Connection(ConnectionType.CLIENT)
        if self.status == 101:
            self._take(rest)
        else:
            length = int(self.headers["content-length"])
            while len(rest) < length and (piece := self.connection.recv(65_536)):
                rest += piece
            self.body = rest
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def problem(self) -> dict[str, Any]:
        """The document of a refusal."""
        return dict(json.loads(self.body))

    def frames(self, number: int, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        """Return that many frames, or fewer when the time is up or the connection has ended."""
        deadline = time.monotonic() + timeout_s
        while len(self._messages) < number and not self.ended:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            self._read(left_s)
        taken, self._messages = self._messages[:number], self._messages[number:]
        return taken

    def end(self, timeout_s: float = 10.0) -> int | None:
        """Read until the server ends it; return its close code, None when it just hung up."""
        deadline = time.monotonic() + timeout_s
        while not self.ended:
            left_s = deadline - time.monotonic()
            assert left_s > 0, "the server did not close"
            self._read(left_s)
        return self.close_code

    def send(self, text: str) -> None:
        self._write(TextMessage(data=text))

    def say_goodbye(self) -> None:
        self._write(CloseConnection(code=1000))

    def reset(self) -> None:
        """End the connection with a RST, unless it has ended."""
        if self.connection.fileno() == -1:
            return
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.connection.close()

    def close(self) -> None:
        self.connection.close()

    def _write(self, event: Event) -> None:
        self.connection.sendall(self._wire.send(event))

    def _head(self) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self.connection.recv(65_536)
            assert piece, f"closed after {data!r}"
            data += piece
        return data

    def _read(self, timeout_s: float) -> None:
        self.connection.settimeout(timeout_s)
        try:
            data = self.connection.recv(65_536)
        except TimeoutError:
            return
        except ConnectionError:
            data = b""
        if data:
            self._take(data)
        else:
            self.ended = True

    def _take(self, data: bytes) -> None:
        """Read the frames that are complete (RFC 6455, section 5.2), faster than a library would."""
        data, at = self._rest + data, 0
        while len(data) - at >= 2:
            first, length = data[at], data[at + 1]
            begin = at + 2
            if length >= 126:
                size = 2 if length == 126 else 8
                length = int.from_bytes(data[begin : begin + size], "big") if len(data) >= begin + size else len(data)
                begin += size
            end = begin + length
            if end > len(data):
                break
            self._frame(first, data[begin:end])
            at = end
        self._rest = data[at:]

    def _frame(self, first: int, payload: bytes) -> None:
        if first == 0x81:  # text, and whole
            self._messages.append(json.loads(payload))
        elif first == 0x89:
            self._write(Pong(payload=payload))
        elif first == 0x88:
            self.close_code, self.ended = int.from_bytes(payload[:2], "big"), True
        else:
            raise AssertionError(f"an unexpected frame: {first:#x}")


def opened(port: int, path: str = "/ws/events", *, receive_buffer: int = 0, **headers: str) -> SocketClient:
    """Return a socket, trying again while the server has not yet noticed the end of earlier ones."""

    def attempt() -> SocketClient | None:
        client = SocketClient(port, path, receive_buffer=receive_buffer, **headers)
        assert client.status in (101, 429, 503), client.body
        return client if client.status == 101 else None

    made = wait_until(attempt, what="room for a socket", timeout_s=10)
    assert made is not None
    return made


def answer_to(port: int, path: str = "/ws/events", **headers: str) -> tuple[int, str]:
    """The status of a handshake, and the code of a refusal; a socket that was opened is closed again."""
    with SocketClient(port, path, **headers) as client:
        return client.status, "" if client.status == 101 else client.problem["code"]
