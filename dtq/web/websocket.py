"""One WebSocket, served by the thread of its request alone: nothing that a client does or leaves undone holds it up.

The protocol is simple_websocket's, without the thread that it would start to read: here one thread reads, sends and
pings in turn, so an idle socket costs one thread and a send never meets a pong halfway.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from simple_websocket import Server as Protocol
from wsproto.events import Ping, TextMessage
from wsproto.utilities import LocalProtocolError

PING_S = 20.0
SEND_S = 5.0
"""A client that does not take what is sent within this time is cut off."""
GOODBYE_S = 1.0
"""The same for the last frame."""
LOOK_S = 0.5
"""How often an idle socket looks whether the process is to stop."""
CHECK_S = 1.0
"""How often a socket looks whether its client still may have it."""

MAX_MESSAGE_BYTES = 4096
MAX_INCOMING_BYTES = 64 * 1024
"""What a client may send between two pings."""
_SEND_BUFFER_BYTES = 128 * 1024  # of the kernel, for each socket: by itself it would grow to megabytes
_RECEIVE_BYTES = 16 * 1024

NORMAL, GOING_AWAY, POLICY, TOO_BIG, SURPRISE, RESTART, TRY_LATER = 1000, 1001, 1008, 1009, 1011, 1012, 1013
"""Close codes (RFC 6455, section 7.4.1, and IANA's registry)."""

_HANDSHAKE = ("HTTP_HOST", "HTTP_UPGRADE", "HTTP_CONNECTION", "HTTP_SEC_WEBSOCKET_KEY", "HTTP_SEC_WEBSOCKET_VERSION")


class Hangup(Exception):
    """The conversation is over."""

    def __init__(self, code: int | None, reason: str = "") -> None:
        """code: what the client is told; None: it is gone, or takes nothing any more. reason: at most 123 bytes."""
        super().__init__(reason or f"code {code}")
        self.code = code
        self.reason = reason


class _Bounded:
    """What the protocol takes for its socket: sends all of it, within a time limit."""

    def __init__(self, connection: socket.socket, stopping: threading.Event) -> None:
        """stopping: a client that is slow then is not waited for."""
        self.timeout_s = SEND_S
        self._connection = connection
        self._stopping = stopping
        self._room = select.poll()
        self._room.register(connection, select.POLLOUT)

    def send(self, data: bytes) -> int:
        """Raises TimeoutError, OSError."""
        deadline = time.monotonic() + self.timeout_s
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._connection.send(rest) :]
            except BlockingIOError:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self._stopping.is_set():
                    raise TimeoutError from None
                self._room.poll(min(left_s, LOOK_S) * 1000)
        return len(data)


class _NoThread:
    """What the protocol takes for the thread that reads."""

    name = ""

    def __init__(self, target: object) -> None:
        pass

    def start(self) -> None:
        """Do nothing: `WebSocket.wait` reads."""


class WebSocket:
    """Use `dtq.web.sockets.serve`. All but `wake` belongs to the thread of the request."""

    def __init__(self, environ: dict[str, Any], stopping: threading.Event) -> None:
        """stopping: ends the conversation with 1012. Nothing is sent before `accept`."""
        self._connection: socket.socket = environ["gunicorn.socket"]
        self._handshake = {name: environ[name] for name in _HANDSHAKE if name in environ}
        self.check: Callable[[], None] | None = None
        """Called now and then by `wait`; raises Hangup when the client may not have the socket any more."""
        self._stopping = stopping
        self._next_check = 0.0
        self._protocol: Any = None
        self._wake_lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poll = select.poll()
        self._poll.register(self._connection, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)
        self._next_ping = time.monotonic() + PING_S
        self._incoming = 0
        self._heard = True  # from the client, since the last ping

    @property
    def accepted(self) -> bool:
        """Whether the connection has become a WebSocket."""
        return self._protocol is not None

    def accept(self) -> None:
        """Answer the handshake. Raises Hangup when the client is gone."""
        if self.accepted:
            return
        with contextlib.suppress(OSError):  # of another family than TCP
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._connection.setblocking(False)
        try:
            # Without the header of extensions, so none is used: compression costs memory for each socket.
            self._protocol = Protocol(
                {"gunicorn.socket": _Bounded(self._connection, self._stopping), **self._handshake},
                max_message_size=MAX_MESSAGE_BYTES,
                thread_class=_NoThread,
            )
        except OSError as error:
            raise Hangup(None, "gone") from error

    def send(self, texts: Iterable[bytes]) -> None:
        """Send each text as a frame, all in one go. Raises Hangup when the client is gone or does not take them."""
        wire = self._protocol.ws
        try:
            self._protocol.sock.send(b"".join([wire.send(TextMessage(data=text.decode())) for text in texts]))
        except TimeoutError:
            raise Hangup(None, "does not read") from None
        except (OSError, LocalProtocolError) as error:
            raise Hangup(None, "gone") from error

    def wait(self, timeout_s: float | None = None) -> list[str | bytes]:
        """Wait until a message comes, `wake` is called, or the time is up; return the messages, often none.

        Answers and sends pings meanwhile, so call it often, with 0 while there is much to send.
        Raises Hangup when the client closes, breaks a rule or is gone, and when the process is to stop.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            if self._stopping.is_set():
                raise Hangup(RESTART, "the server restarts")
            if self.check is not None and now >= self._next_check:
                self._next_check = now + CHECK_S
                self.check()
            if now >= self._next_ping:
                self._ping(now)
            ends = (now + LOOK_S, self._next_ping) if deadline is None else (now + LOOK_S, self._next_ping, deadline)
            ready = [descriptor for descriptor, _ in self._poll.poll(max(0, min(ends) - now) * 1000)]
            messages = self._receive() if self._connection.fileno() in ready else []
            woken = self._wake_read in ready and self._drain()
            if messages or woken or (deadline is not None and time.monotonic() >= deadline):
                return messages

    def wake(self) -> None:
        """Let `wait` return. From any thread, also when the socket is no more."""
        with self._wake_lock, contextlib.suppress(BlockingIOError):
            if self._wake_write >= 0:
                os.write(self._wake_write, b"\0")

    def finish(self, code: int | None, reason: str = "") -> None:
        """Say goodbye with a close code, or, with None, hang up. The connection itself is the web server's to close."""
        with self._wake_lock:
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_read = self._wake_write = -1
        if not self.accepted:
            return
        if code is not None and self._protocol.connected:
            self._protocol.sock.timeout_s = GOODBYE_S
            try:
                self._protocol.close(code, reason or None)
                return
            except (OSError, LocalProtocolError):
                pass
        with contextlib.suppress(OSError):  # what it did not take is thrown away
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._connection.shutdown(socket.SHUT_RDWR)

    def _receive(self) -> list[str | bytes]:
        try:
            data = self._connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise Hangup(None, "gone") from error
        if not data:
            raise Hangup(None, "gone")
        self._heard = True
        self._incoming += len(data)
        if self._incoming > MAX_INCOMING_BYTES:
            raise Hangup(POLICY, "too many messages")
        try:
            self._protocol.ws.receive_data(data)
            going_on = self._protocol._handle_events()
        except (OSError, LocalProtocolError, UnicodeError) as error:
            raise Hangup(None, "gone") from error
        messages: list[str | bytes] = self._protocol.input_buffer
        self._protocol.input_buffer = []
        if not going_on:  # it has been answered already
            self._protocol.connected = False
            raise Hangup(NORMAL, "closed by the client")
        return messages

    def _ping(self, now: float) -> None:
        if not self._heard:
            raise Hangup(None, "does not answer")
        self._heard, self._incoming = False, 0
        self._next_ping = now + PING_S
        try:
            self._protocol.sock.send(self._protocol.ws.send(Ping()))
        except (OSError, LocalProtocolError) as error:
            raise Hangup(None, "gone") from error

    def _drain(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        return True
