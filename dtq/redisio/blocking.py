"""Waiting in Redis: a connection of its own, which another thread can interrupt."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from redis.connection import ConnectionInterface
from redis.exceptions import RedisError, ResponseError

from dtq.redisio.errors import Interrupted, raise_inner
from dtq.redisio.pool import Link, Pool
from dtq.redisio.wire import Arg, pack

_UNBLOCK_LIMIT_S = 1.0


class BlockingCaller:
    """Sends commands that wait, from one thread at a time; `interrupt` and `close` may come from any other.

    It connects by itself, again after a failure, and anew after a fork.
    """

    def __init__(self, own_pool: Callable[[], Pool], short_call: Callable[..., Any], timeout_s: float) -> None:
        """Use `Server.blocking`. own_pool: returns the pool of this process. short_call: `Server.call`."""
        self._own_pool = own_pool
        self._short_call = short_call
        self._client_id: int | None = None
        self._margin_s = timeout_s
        self._socket: socket.socket | None = None
        """The connection's socket under a descriptor of its own: it cannot be closed, and the number reused by a
        stranger, between looking at it and shutting it down."""
        self._interrupted = False
        self._closed = False
        self._start()

    def _start(self) -> None:
        self._pool = self._own_pool()
        self._link = Link()
        self._lock = threading.Lock()
        self._busy = False

    def _locked(self) -> threading.Lock:
        """Return the lock. After a fork the connection, and perhaps the lock, belong to a thread of the parent."""
        if self._own_pool() is not self._pool:
            self._forget_socket()
            self._start()
        return self._lock

    def call(self, *args: Arg, block_s: float) -> Any:
        """Send a command that waits up to `block_s` seconds by itself (BLOCK) and return its reply as it comes.

        block_s: what the command was told; the reply is waited for a little longer, so idling is no failure.
        Nothing is repeated. Raises Interrupted, and what `Server.call` raises.
        """
        data = pack(args)
        with self._locked():
            self._refuse_if_interrupted()
            self._busy = True
        pool = self._pool
        try:
            reply = self._exchange(pool, data, block_s)
        finally:
            with self._lock:
                self._busy = False
                if self._interrupted:
                    self._drop()
        raise_inner(reply, pool.route.where)
        return reply

    def interrupt(self) -> None:
        """End a call in progress, and refuse the next ones, with Interrupted, until `reset`.

        A connection that is just being made is waited for first, at most for the server's timeout.
        """
        with self._locked():
            self._interrupted = True
            if not self._busy:
                self._drop()
            elif self._socket is not None:
                with contextlib.suppress(OSError):  # the peer was faster
                    self._socket.shutdown(socket.SHUT_RDWR)
        if self._pool.route.kind == "memory":
            self._unblock()

    def reset(self) -> None:
        """Allow calls again after `interrupt`."""
        with self._locked():
            self._interrupted = self._closed

    def close(self) -> None:
        """Interrupt for good and close the connection."""
        self._closed = True
        self.interrupt()

    def _exchange(self, pool: Pool, data: bytes, block_s: float) -> Any:
        link = self._link
        try:
            if not link.usable(pool.generation):
                pool.renew(link)
            connection = link.connection
            if not connection.is_connected:
                connection.connect()
                self._watch(connection)
            with self._lock:
                self._refuse_if_interrupted()
            link.midway = True
            connection.send_packed_command((data,), check_health=False)
            reply = connection.read_response(disable_decoding=True, timeout=block_s + self._margin_s)
            link.midway = False
            if reply is None:  # in memory that may be the interrupt
                self._refuse_if_interrupted()
        except (RedisError, OSError) as error:
            if self._interrupted and not isinstance(error, ResponseError):
                raise Interrupted from error
            raise pool.failed(link, error) from error
        return reply

    def _watch(self, connection: ConnectionInterface) -> None:
        """Keep what an interrupt of the new connection needs."""
        if self._pool.route.kind == "memory":
            connection.send_packed_command((pack(("CLIENT", "ID")),), check_health=False)
            self._client_id = connection.read_response(disable_decoding=True)
            return
        descriptor: int = connection._get_socket().fileno()  # type: ignore[attr-defined]
        with self._lock:
            self._forget_socket()
            self._socket = socket.socket(fileno=socket.dup(descriptor))

    def _unblock(self) -> None:
        """End a wait inside the fake server, which has no socket to shut down; it may be just about to begin."""
        deadline = time.monotonic() + _UNBLOCK_LIMIT_S
        while self._busy and time.monotonic() < deadline:
            if self._client_id is not None:
                self._short_call("CLIENT", "UNBLOCK", self._client_id)
            time.sleep(0.001)

    def _refuse_if_interrupted(self) -> None:
        if self._interrupted:
            raise Interrupted

    def _drop(self) -> None:
        self._link.disconnect()
        self._forget_socket()

    def _forget_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
