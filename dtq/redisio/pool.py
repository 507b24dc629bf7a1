"""Connections: one command's way to Redis and back, and a pool that lends them out."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from redis.connection import ConnectionInterface
from redis.exceptions import RedisError, ResponseError

from dtq.errors import DtqError, RedisUnavailable
from dtq.redisio.errors import AWAY, translate, unavailable
from dtq.redisio.urls import Kind

IDLE_CHECK_S = 1.0
"""A connection that was idle for longer is looked at before it is used: a server that restarted has closed it."""


_UNMADE = -1


class Route(Protocol):
    """Knows which server to talk to. It may ask others first (sentinels, cluster nodes), and ask again after a loss."""

    @property
    def kind(self) -> Kind: ...

    @property
    def where(self) -> str:
        """The address for messages, without passwords."""

    def connection(self) -> ConnectionInterface:
        """Return a connection that is not yet connected. Raises RedisUnavailable when no server can be named."""

    def lost(self, error: Exception) -> None:
        """What was known of the server may be wrong, as `error` shows: find it anew for the next connection."""


class Link:
    """One connection as the pool lends it: it says whether it can be used again, and gives its place back when lost."""

    __slots__ = ("_on_gone", "connection", "generation", "midway", "used_at")

    connection: ConnectionInterface
    generation: int
    """Of the pool when the connection was made; _UNMADE before that."""
    midway: bool
    """Whether a command was sent whose reply has not been read in full: such a connection is never used again."""
    used_at: float

    def __init__(self, on_gone: Callable[[], None] | None = None) -> None:
        """on_gone: called when the link has been freed."""
        self.generation = _UNMADE
        self._on_gone = on_gone

    def __del__(self) -> None:
        # A task's timeout is raised in its thread at any point, also between taking a link and giving it back: the
        # place in the pool must follow the object's life, not a line of code that may not be reached.
        if self._on_gone is not None:
            self._on_gone()

    def disconnect(self) -> None:
        """Close the connection, if there is one."""
        if self.generation != _UNMADE:
            self.connection.disconnect()

    def usable(self, generation: int) -> bool:
        """Whether a command can be sent without meeting the end of a server that has gone in the meantime."""
        if self.generation != generation or self.midway:
            return False
        if not self.connection.is_connected or time.monotonic() - self.used_at < IDLE_CHECK_S:
            return True
        try:
            return not self.connection.can_read(0)  # there is nothing to read, unless the peer closed
        except (RedisError, OSError):
            return False


class Pool:
    """Lends connections, the last returned first; bounded; a thread waits for one at most `timeout_s`."""

    def __init__(self, route: Route, max_connections: int, timeout_s: float) -> None:
        self.route = route
        self.pid = os.getpid()
        self.generation = 0
        self.last_failure: float | None = None
        self._max = max_connections
        self._timeout_s = timeout_s
        self._free: deque[Link] = deque()
        self._links = 0
        self._waiting = 0
        self._closed = False
        # Reentrant: Link.__del__ may run in any thread, also in one that is inside the lock
        self._changed = threading.Condition(threading.RLock())

    def after_fork(self) -> Pool:
        """Return an empty pool for the child; the parent goes on using the connections of this one."""
        self._changed = threading.Condition(threading.RLock())  # a thread that is gone may have held the other one
        self._free.clear()
        child = Pool(self.route, self._max, self._timeout_s)
        child._closed, child.last_failure = self._closed, self.last_failure
        return child

    def take(self) -> Link:
        """Return a usable link, to be given back. Raises RedisUnavailable when all are in use for too long."""
        try:
            link = self._free.pop()
        except IndexError:
            link = self._wait_or_make()
        if not link.usable(self.generation):
            try:
                self.renew(link)
            except BaseException:
                self.give_back(link)
                raise
        return link

    def renew(self, link: Link) -> None:
        """Give the link a new connection, not yet connected. Raises RedisUnavailable when no server can be named."""
        link.disconnect()
        generation = self.generation
        try:
            link.connection = self.route.connection()
        except RedisUnavailable as error:
            self._note(error)
            raise
        link.generation, link.midway, link.used_at = generation, False, time.monotonic()

    def give_back(self, link: Link) -> None:
        """Take a link back after use, connected or not."""
        link.used_at = time.monotonic()
        self._free.append(link)
        if self._waiting or self._closed:
            with self._changed:
                if self._closed:
                    self._free.clear()
                self._changed.notify()

    def failed(self, link: Link, error: Exception) -> DtqError:
        """Return dtq's error for what redis-py raised on a link, and draw the consequences for the connections.

        When Redis is away, or no longer the one that it should be, none of the connections from before is used again.
        """
        if isinstance(error, ResponseError):
            link.midway = False  # an answer like any other
        failure = translate(error, self.route.where)
        if self._note(failure):
            link.disconnect()
            if link.generation == self.generation:  # the first to meet it
                self.generation += 1
                self.route.lost(error)
        return failure

    def close(self) -> None:
        """Close the connections: those in use when they come back."""
        with self._changed:
            self._closed = True
            self._free.clear()
            self._changed.notify_all()

    def _note(self, failure: DtqError) -> bool:
        away = failure.context.get("reason") in AWAY
        if away:
            self.last_failure = time.monotonic()
        return away

    def _wait_or_make(self) -> Link:
        deadline = time.monotonic() + self._timeout_s
        with self._changed:
            self._waiting += 1
            try:
                while True:
                    if self._closed:
                        raise unavailable("closed", self.route.where, "this client was closed")
                    if self._free:
                        return self._free.pop()
                    if self._links < self._max:
                        self._links += 1
                        return Link(self._gone)
                    if not self._changed.wait(deadline - time.monotonic()):
                        raise unavailable("pool", self.route.where, "all connections are busy")
            finally:
                self._waiting -= 1

    def _gone(self) -> None:
        with self._changed:
            self._links -= 1
            self._changed.notify()
