"""gunicorn's parser and responses behind a loop in which no client holds up the others, and nothing is handed over.

Written for gunicorn 27 (docs/decisions has the measurements). All threads wait in one poller; whoever hears of a
connection takes what has come of its request, runs it once it is there, answers, and lets the poller watch the
connection again. So a connection costs a thread only while a request is run and answered, and while the rest of a large
one is read; each read and write of that has a time limit, and so has every wait, which the main thread looks after.
Stock gthread gives a new connection a thread before its first byte, closes lingering connections in its main thread,
waits for ever for the rest of a request, and passes each request from thread to thread and back.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any

from gunicorn.http import wsgi
from gunicorn.http.errors import ParseException
from gunicorn.http.message import Request
from gunicorn.workers import base
from gunicorn.workers.gthread import TConn, ThreadWorker

from dtq.web.arrival import GATHER_BYTES, is_ready
from dtq.web.poller import Poller
from dtq.web.refusals import refusal

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

STOP_S = 2.0
"""How long a stopping worker waits for what clients may be sending on connections that were kept for them."""

_DRAIN_S = 1.0  # for a body that the application did not want, before the connection is given up
_RECEIVE_BYTES = 64 * 1024
_CHECK_S = 1.0  # how often the main thread looks for waits that have ended
_STOPPING_CHECK_S = 0.05


class Client(socket.socket):
    """A client's socket: it blocks, and its limits of time are the kernel's."""

    def setblocking(self, flag: bool) -> None:
        """Do it when it changes something: gunicorn calls this for every request, and each time is a system call."""
        if flag != self.getblocking():
            super().setblocking(flag)

    def settimeout(self, value: float | None) -> None:
        """Do it when it changes something."""
        if value != self.gettimeout():
            super().settimeout(value)


class Response(wsgi.Response):
    """A response that, when its body is in one piece, goes out in one piece: one packet, and the client wakes once."""

    def write(self, arg: bytes) -> None:
        """Send a piece of the body, before the first one the head."""
        omits_body = self._omits_body  # type: ignore[attr-defined]  # of newer versions than the types are for
        if self.headers_sent or omits_body or len(arg) != self.response_length:
            super().write(arg)
            return
        head = [*self.default_headers(), *[f"{name}: {value}\r\n" for name, value in self.headers], "\r\n"]
        self.headers_sent, self.sent = True, len(arg)
        self.sock.sendall("".join(head).encode("latin-1") + arg)


class Connection(TConn):
    """A client's connection. At any time either one thread has it or the poller watches it."""

    def __init__(self, worker: Worker, client: socket.socket, address: Any, server: Any) -> None:
        super().__init__(worker.cfg, client, address, server)
        client.setblocking(True)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", READ_S, 0))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", WRITE_S, 0))
        self.fd = client.fileno()
        self.data_ready = True  # it is served when the poller has seen its first byte
        self.linger_until: float | None = None
        """Set once nothing more will be sent."""
        self.drained = 0
        self.begun_at: float | None = None
        """Since when (monotonic) the poller has watched it for the rest of a request."""
        self._asked_at = 0.0
        self._received = 0

    def gather(self) -> bool:
        """Receive what has come of a request, without waiting. Returns whether it is time for a thread to read it."""
        if self.cfg.is_ssl:  # what has come is not yet what was sent
            return True
        if self.parser is None:
            self.init()
        held: Any = self.parser.unreader.buf  # type: ignore[union-attr]
        if not is_ready(held.getvalue()):
            piece: bytes | None = b""
            try:
                piece = self.sock.recv(GATHER_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                piece = None
            except OSError:  # the parser meets it too, as it does the end
                pass
            held.seek(0, os.SEEK_END)
            held.write(piece or b"")
            if piece is None or (piece and not is_ready(held.getvalue())):
                self.begun_at = self.begun_at or time.monotonic()
                return False
        self.begun_at = None
        return True

    def patience_s(self) -> float:
        """Return how long the next bytes of a request that is being gathered may take."""
        gathered = len(self.parser.unreader.buf.getvalue())  # type: ignore[union-attr]
        so_far = time.monotonic() - (self.begun_at or 0.0)
        return max(0.0, min(READ_S, REQUEST_S + gathered / REQUEST_BYTES_PER_S - so_far))

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


class Worker(ThreadWorker):
    """The loop around gunicorn's `handle`, which reads one request, runs and answers it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connections: dict[int, Connection] = {}
        self._changing = threading.Lock()  # of _connections: a socket's number may be taken again at once
        self._waiting: dict[Connection, float] = {}
        """Until when (monotonic) the poller may watch a connection. Who takes it out has the connection."""
        self._listeners: dict[int, socket.socket] = {}
        self._unwatched: set[int] = set()
        """Listeners that the main thread will let the poller watch when there is room."""
        self._ended = False
        self._end = (-1, -1)

    def init_process(self) -> None:
        """Make what must not be made before the fork, then run."""
        # gunicorn finds each setting by way of a method, a dozen times a request: let it find attributes
        vars(self.cfg).update({name: setting.get() for name, setting in self.cfg.settings.items()})
        self._poller = Poller()
        self._end = os.pipe()
        base.Worker.init_process(self)

    def run(self) -> None:
        """Serve until the arbiter says stop, or is gone. Everything but the limits of time happens in the threads."""
        for listener in self.sockets:
            listener.setblocking(False)
            self._listeners[listener.fileno()] = listener
            self._unwatched.add(listener.fileno())
        self._poller.watch_always(self._end[0])
        threads = [threading.Thread(target=self._serve, name=f"web-{n}", daemon=True) for n in range(self.cfg.threads)]
        for thread in threads:
            thread.start()
        while self.alive and self.is_parent_alive():
            self.notify()
            self._let_in()
            self._end_waits()
            self._sleep(_CHECK_S)
        self.alive = False
        self._finish()
        self._ended = True
        os.close(self._end[1])  # wakes all threads
        for thread in threads:
            thread.join(0.1)

    # --- the threads --------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._ended:
            fd = self._poller.wait()
            connection = self._connections.get(fd)
            try:
                if connection is not None:
                    self._on_readable(connection)
                elif fd in self._listeners:
                    self._accept(fd)
            except BaseException:  # also an application's SystemExit: a thread outlives a connection
                self.log.exception("a connection failed")
                if connection is not None:
                    self._drop(connection)
                else:
                    self._unwatched.add(fd)

    def _on_readable(self, connection: Connection) -> None:
        if self._waiting.pop(connection, None) is None:  # its time was up, and the main thread woke us to say so
            self._drop(connection)
        elif connection.linger_until is not None:
            self._drain(connection)
        else:
            self._answer(connection)

    def _answer(self, connection: Connection) -> None:
        while True:
            if not connection.gather():
                self._wait(connection, connection.patience_s())
                return
            if not self.handle(connection):
                break
            if not connection.parser.unreader.buf.getvalue():  # type: ignore[union-attr]  # else it read the next one too
                self._wait(connection, self.cfg.keepalive)
                return
        self._close(connection)

    def handle_request(self, req: Request, conn: TConn) -> bool:
        """Let the application answer a request. Returns whether the connection can serve another one."""
        response, environ = wsgi.create(req, conn.sock, conn.client, conn.server, self.cfg, response_class=Response)
        environ["wsgi.multithread"] = True
        self.nr += 1
        if self.nr >= self.max_requests:
            self.alive = False
        stays = self.alive and self.cfg.keepalive and len(self._waiting) < self.max_keepalived
        if not stays or "close" in environ.get("HTTP_CONNECTION", "").lower():  # gunicorn knows it as the only word
            response.force_close()
        started = time.monotonic()
        body: Any = self.wsgi(environ, response.start_response)  # type: ignore[arg-type]
        try:
            if isinstance(body, wsgi.FileWrapper):
                response.write_file(body)
            else:
                for piece in body:
                    response.write(piece)
            response.close()
        except Exception as error:
            if isinstance(error, OSError) or not response.headers_sent:
                raise
            self.log.exception("a response broke off")  # it is too late for another one
            return False
        finally:
            self.log.access(response, req, environ, timedelta(seconds=time.monotonic() - started))
            if hasattr(body, "close"):
                body.close()
        return not response.should_close()

    def _keepalive_after(self, conn: TConn, keepalive: bool) -> bool:
        """Whether the connection can serve another request: not with a rest of a body that is still on its way."""
        if not keepalive:
            return False
        parser: Any = conn.parser
        all_read = getattr(parser.mesg.body.reader, "length", None) == 0
        try:
            return all_read or bool(parser.finish_body(deadline=time.monotonic() + _DRAIN_S))
        except (OSError, ParseException):  # the request has its answer: a second one would be taken for the next one's
            return False

    def _wait(self, connection: Connection, seconds: float) -> None:
        """Let the poller watch a connection: from the last line on, another thread may have it."""
        self._waiting[connection] = time.monotonic() + seconds
        self._poller.watch(connection.fd)

    def _accept(self, fd: int) -> None:
        if not self.alive:
            return
        listener = self._listeners[fd]
        try:
            client, address = listener.accept()
            self._take_in(client, address, listener.getsockname())
        except (BlockingIOError, ConnectionError):  # another process was faster, or the client thought better of it
            pass
        except OSError as error:  # such as no more files: tried again within a second
            self.log.warning("a connection could not be accepted: %s", error)
            self._unwatched.add(fd)
            return
        if len(self._connections) < self.worker_connections:
            self._poller.watch(fd)
        else:
            self._unwatched.add(fd)

    def _take_in(self, client: socket.socket, address: Any, server: Any) -> None:
        client = Client(client.family, client.type, client.proto, client.detach())
        connection = Connection(self, client, address, server)
        with self._changing:
            self._connections[connection.fd] = connection
        self._wait(connection, FIRST_BYTE_S)

    # --- closing ------------------------------------------------------------------------------------------------------

    def _close(self, connection: Connection) -> None:
        """Say that nothing more will be sent, and close when the client has heard it."""
        try:
            connection.sock.shutdown(socket.SHUT_WR)
        except OSError:  # the client was faster, or the application has closed it
            self._drop(connection)
            return
        connection.linger_until = time.monotonic() + LINGER_S
        self._drain(connection)

    def _drain(self, connection: Connection) -> None:
        """Throw away what a client sends that has its last response."""
        try:
            while data := connection.sock.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT):
                connection.drained += len(data)
                if connection.drained > LINGER_BYTES:
                    break
        except BlockingIOError:
            self._wait(connection, (connection.linger_until or 0.0) - time.monotonic())
            return
        except OSError:
            pass
        self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        with self._changing:
            if self._connections.get(connection.fd) is connection:
                del self._connections[connection.fd]
        connection.close()

    # --- the main thread ----------------------------------------------------------------------------------------------

    def _let_in(self) -> None:
        """Watch the listeners again that were left alone: for lack of room, or after an error."""
        while self._unwatched and len(self._connections) < self.worker_connections:
            self._poller.watch(self._unwatched.pop())

    def _end_waits(self, not_after: float = math.inf) -> None:
        """End the waits whose time is up. not_after: the time (monotonic) at which all of them are."""
        now = time.monotonic()
        for connection, until in self._waiting.copy().items():
            ends = until if connection.begun_at else min(until, not_after)  # what has begun to come is waited for
            if ends <= now and self._waiting.pop(connection, None) is not None:
                with contextlib.suppress(OSError):  # the poller reports what is shut down, and a thread drops it
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def _sleep(self, seconds: float) -> None:
        """Sleep until a signal comes."""
        signals = select.poll()
        signals.register(self.PIPE[0], select.POLLIN)
        if signals.poll(seconds * 1000):
            os.read(self.PIPE[0], 4096)

    def _finish(self) -> None:
        """No new connections; what runs, and what clients have begun to send, is answered; silence ends soon."""
        for listener in self.sockets:
            listener.close()
        shared = getattr(getattr(self, "wsgi", None), "extensions", {}).get("dtq")
        if shared is not None:
            shared.stopping.set()  # requests that wait for a task answer now
        silent_until = time.monotonic() + STOP_S
        give_up_at = time.monotonic() + self.cfg.graceful_timeout
        while self._connections and time.monotonic() < give_up_at:
            self.notify()
            self._end_waits(silent_until)
            self._sleep(_STOPPING_CHECK_S)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM: finish."""
        base.Worker.handle_exit(self, sig, frame)

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        """SIGQUIT, SIGINT: end at once."""
        base.Worker.handle_quit(self, sig, frame)

    # --- errors before there is a request for the application ---------------------------------------------------------

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        """Answer what is not HTTP, or more of it than is read, with a problem document like any other error."""
        response, status, request_id = refusal(exc)
        if status == 500:
            self.log.error("a request failed outside the application, request id %s", request_id, exc_info=exc)
        else:
            self.log.info("refused what %s sent: %s", addr[0] if addr else "a client", type(exc).__name__)
        with contextlib.suppress(OSError):
            client.sendall(response)
