"""gunicorn's threaded worker without the ways in which one client holds up the others.

Written for gunicorn 27 (docs/decisions has the measurements). Stock gthread gives a new connection a thread before its
first byte, so a few silent connections occupy all threads; closes lingering connections in its main thread, two
seconds each; and waits for ever for the rest of a request that stopped halfway. Here a connection costs a thread only
while a request is read, run and answered, and each read and write of that has a time limit.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from types import FrameType
from typing import Any

from gunicorn.http import errors
from gunicorn.workers.gthread import TConn, ThreadWorker

FIRST_BYTE_S = 10.0
"""A connection that has sent nothing for this long is closed."""

READ_S, WRITE_S = 10, 30
"""A request whose next byte, or a response whose next buffer, takes longer ends with its connection."""

REQUEST_S, REQUEST_BYTES_PER_S = 20.0, 16 * 1024
"""A request may take so long to come, and longer only as its bytes come this fast: a client that sends them one by one,
each just within READ_S, does not keep a thread."""

LINGER_S = 2.0
LINGER_BYTES = 8 * 1024 * 1024
"""After the last response what the client still sends is thrown away for this long, up to this much: closing at once
would reset the connection, and the client might never see the response (RFC 9112, section 9.6)."""

_DRAIN_S = 1.0  # for a body that the application did not want, before the connection is given up
_RECEIVE_BYTES = 64 * 1024

_REFUSALS: tuple[tuple[type[BaseException], int, str], ...] = (
    (errors.InvalidResponseHeader, 500, "INTERNAL_ERROR"),  # type: ignore[attr-defined]
    (errors.InvalidResponseHeaderName, 500, "INTERNAL_ERROR"),  # type: ignore[attr-defined]
    (errors.LimitRequestLine, 414, "URI_TOO_LONG"),
    (errors.LimitRequestHeaders, 431, "HEADERS_TOO_LARGE"),
    (errors.ExpectationFailed, 417, "EXPECTATION_FAILED"),
    (errors.UnsupportedTransferCoding, 501, "UNSUPPORTED_TRANSFER_CODING"),
    (errors.ParseException, 400, "BAD_REQUEST"),
    (BaseException, 500, "INTERNAL_ERROR"),
)
"""The first class that fits decides."""


class Connection(TConn):
    """A client's connection, closed without waiting for the client."""

    worker: Worker
    drained = 0
    _asked_at = 0.0
    _received = 0

    def init(self) -> None:
        """Begin to read a request: called for each one on the connection."""
        fresh = not self.initialized
        super().init()
        self._asked_at, self._received = time.monotonic(), 0
        if fresh:
            unreader: Any = self.parser.unreader  # type: ignore[union-attr]
            unreader.chunk = partial(self._in_time, unreader.chunk)

    def _in_time(self, receive: Callable[..., bytes], size_hint: int | None = None) -> bytes:
        """Receive the next bytes of a request, if it is not too slow altogether."""
        if time.monotonic() - self._asked_at > REQUEST_S + self._received / REQUEST_BYTES_PER_S:
            raise TimeoutError("the request came too slowly")
        data = receive(size_hint)
        self._received += len(data)
        return data

    def close(self, graceful: bool = False) -> None:
        """Close at once, or, graceful, once the client has closed too or LINGER_S have passed."""
        if graceful:
            self.worker.linger(self)
        else:
            super().close()


class Worker(ThreadWorker):
    """Everything but `handle` runs in the main thread, on the poller's events."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lingering: dict[Connection, float] = {}  # until when; in order, since each gets the same time

    def accept(self, listener: socket.socket) -> None:
        """Take a connection and wait, in the poller, for its first byte."""
        try:
            client, address = listener.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EWOULDBLOCK):
                raise
            return
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", READ_S, 0))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", WRITE_S, 0))
        connection = Connection(self.cfg, client, address, listener.getsockname())
        connection.worker = self
        connection.timeout = time.monotonic() + FIRST_BYTE_S
        self.nr_conns += 1
        self.pending_conns.append(connection)
        self.poller.register(client, selectors.EVENT_READ, partial(self.on_pending_socket_readable, connection))

    # --- closing ------------------------------------------------------------------------------------------------------

    def linger(self, connection: Connection) -> None:
        """Say that nothing more will be sent, and close when the client has heard it."""
        client = connection.sock
        try:
            client.shutdown(socket.SHUT_WR)
            client.setblocking(False)
            self.poller.register(client, selectors.EVENT_READ, partial(self._on_lingering_readable, connection))
        except (OSError, ValueError, KeyError):  # the client was faster
            TConn.close(connection)
            return
        self.nr_conns += 1  # whoever closes has counted it out
        self._lingering[connection] = time.monotonic() + LINGER_S

    def _on_lingering_readable(self, connection: Connection, client: socket.socket) -> None:
        try:
            data = client.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.drained += len(data)
        if not data or connection.drained > LINGER_BYTES:
            self._end_lingering(connection)

    def _end_lingering(self, connection: Connection) -> None:
        del self._lingering[connection]
        self.nr_conns -= 1
        with contextlib.suppress(OSError, KeyError, ValueError):
            self.poller.unregister(connection.sock)
        TConn.close(connection)

    def murder_pending(self) -> None:
        """Close what has been silent, or has lingered, for too long; called at least once a second."""
        super().murder_pending()
        now = time.monotonic()
        while self._lingering:
            connection, until = next(iter(self._lingering.items()))
            if until > now:
                break
            self._end_lingering(connection)

    def _keepalive_after(self, conn: TConn, keepalive: bool) -> bool:
        """Whether the connection can serve another request: not with a rest of a body that is still on its way."""
        return keepalive and bool(conn.parser.finish_body(deadline=time.monotonic() + _DRAIN_S))  # type: ignore[union-attr]

    # --- stopping -----------------------------------------------------------------------------------------------------

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM: no new connections, and requests that wait for a task answer now."""
        shared = getattr(getattr(self, "wsgi", None), "extensions", {}).get("dtq")
        if shared is not None:
            shared.stopping.set()
        super().handle_exit(sig, frame)

    def _cap_keepalive(self, deadline: float) -> None:
        """Silent connections, too, delay the end of the worker until `deadline` at most."""
        for waiting in (self.keepalived_conns, self.pending_conns):
            _cap(waiting, deadline)

    # --- errors before there is a request for the application ---------------------------------------------------------

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        """Answer what is not HTTP, or more of it than is read, with a problem document like any other error."""
        status, code = next((status, code) for kind, status, code in _REFUSALS if isinstance(exc, kind))
        request_id = os.urandom(12).hex()
        if status == 500:
            self.log.error("a request failed outside the application, request id %s", request_id, exc_info=exc)
        else:
            self.log.info("refused what %s sent: %s", addr[0] if addr else "a client", type(exc).__name__)
        with contextlib.suppress(OSError):
            client.sendall(_problem(HTTPStatus(status), code, request_id))


def _cap(connections: deque[TConn], deadline: float) -> None:
    for connection in connections:
        connection.timeout = min(connection.timeout or deadline, deadline)


def _problem(status: HTTPStatus, code: str, request_id: str) -> bytes:
    said = status.description or "the request could not be read"
    document = {
        "type": "about:blank",
        "title": status.phrase,
        "status": status.value,
        "detail": said,
        "code": code,
        "message": said,
        "request_id": request_id,
    }
    body = json.dumps(document).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\nContent-Type: application/problem+json\r\n"
        f"Content-Length: {len(body)}\r\nX-Request-ID: {request_id}\r\nX-Content-Type-Options: nosniff\r\n"
        "Cache-Control: no-store\r\n\r\n"
    )
    return head.encode("latin-1") + body
