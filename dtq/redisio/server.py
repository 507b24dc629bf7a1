"""The one door to Redis: short commands on pooled connections, blocking ones on a connection of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from redis.connection import ConnectionInterface
from redis.exceptions import RedisError, ResponseError

from dtq.redisio.blocking import BlockingCaller
from dtq.redisio.discovery import ClusterRoute, SentinelRoute
from dtq.redisio.errors import raise_inner
from dtq.redisio.pool import Pool, Route
from dtq.redisio.routes import StandaloneRoute
from dtq.redisio.urls import Kind, Target, parse
from dtq.redisio.wire import Arg, pack


class Server:
    """A Redis server, or what stands for one: Sentinel's master, a Cluster's node, a fake in memory.

    Safe to use from any thread, and after a fork. Nothing is connected before the first command.
    """

    def __init__(self, route: Route, target: Target, *, max_connections: int, timeout_s: float) -> None:
        """Use `Server.connect`."""
        self._pool = Pool(route, max_connections, timeout_s)
        self._timeout_s = timeout_s
        self.safe_url = target.safe_url
        """The URL without its passwords."""

    @classmethod
    def connect(cls, url: str, *, max_connections: int = 16, timeout_s: float = 1.5, namespace: str = "") -> Server:
        """Return a server for a URL; nothing is sent yet.

        timeout_s: for connecting, for a reply, and for a free connection, each.
        namespace: on a Cluster its slot decides the node; a name in braces, by default `{dtq}`.
        Raises ConfigurationError for a URL that cannot be used.
        """
        target = parse(url)
        route = _route(target, timeout_s, namespace)
        return cls(route, target, max_connections=max_connections, timeout_s=timeout_s)

    @property
    def kind(self) -> Kind:
        """What stands behind the URL."""
        return self._pool.route.kind

    @property
    def last_failure(self) -> float | None:
        """time.monotonic() when Redis was last seen to be away, by any connection of this process; None for never."""
        return self._pool.last_failure

    def call(self, *args: Arg) -> Any:
        """Send one command and return its reply as it comes: bytes, int, None or lists of these.

        Nothing is repeated: after RedisUnavailable the command may or may not have been done.
        Raises RedisUnavailable (context["reason"] says why), RedisFull, NoScript, CommandError.
        """
        data = pack(args)
        pool = self._own_pool()
        link = pool.take()
        try:
            link.midway = True
            connection = link.connection
            connection.send_packed_command((data,), check_health=False)
            reply = connection.read_response(disable_decoding=True)
            link.midway = False
        except (RedisError, OSError) as error:
            raise pool.failed(link, error) from error
        finally:
            pool.give_back(link)
        raise_inner(reply, pool.route.where)
        return reply

    def now(self) -> float:
        """Return the time on Redis's clock, to which all stored times belong, in seconds since the epoch.

        Raises what `call` raises.
        """
        seconds, microseconds = self.call("TIME")
        return int(seconds) + int(microseconds) / 1e6

    def pipeline(self, commands: Sequence[Sequence[Arg]]) -> list[Any]:
        """Send several commands in one write and return their replies, read in one go.

        When some are refused, the first refusal is raised after all replies are read; the others have been done.
        Raises as `call`.
        """
        if not commands:
            return []
        data = b"".join(map(pack, commands))
        pool = self._own_pool()
        link = pool.take()
        try:
            link.midway = True
            connection = link.connection
            connection.send_packed_command((data,), check_health=False)
            replies = [_reply_or_refusal(connection) for _ in commands]
            link.midway = False
            refusal = next((reply for reply in replies if isinstance(reply, Exception)), None)
            if refusal is not None:
                raise refusal
        except (RedisError, OSError) as error:
            raise pool.failed(link, error) from error
        finally:
            pool.give_back(link)
        for reply in replies:
            raise_inner(reply, pool.route.where)
        return replies

    def blocking(self) -> BlockingCaller:
        """Return a caller with a connection of its own, for commands that wait."""
        return BlockingCaller(self._own_pool, self.call, self._timeout_s)

    def close(self) -> None:
        """Close the connections; calls raise RedisUnavailable from now on. Blocking callers are closed apart."""
        self._own_pool().close()

    def _own_pool(self) -> Pool:
        pool = self._pool
        if pool.pid != os.getpid():  # two threads may both make one: a lost pool is closed when its calls are done
            pool = self._pool = pool.after_fork()
        return pool


def _reply_or_refusal(connection: ConnectionInterface) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


def _route(target: Target, timeout_s: float, namespace: str) -> Route:
    if target.kind == "memory":
        from dtq.redisio.memory import MemoryRoute  # heavy: fakeredis, and Lua for it

        return MemoryRoute(target)
    if target.kind == "sentinel":
        return SentinelRoute(target, timeout_s)
    if target.kind == "cluster":
        return ClusterRoute(target, timeout_s, namespace)
    return StandaloneRoute(target, timeout_s)
