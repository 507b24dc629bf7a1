"""The way to one fixed server; a connection is set up so that making it costs no round trip beyond AUTH and SELECT."""

from __future__ import annotations

import time
from typing import Any

from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionInterface, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry

from dtq.redisio.urls import Host, Kind, Target, address
from dtq.redisio.wire import Arg, pack


class _TcpConnection(Connection):
    """Bounds the whole of connecting: redis-py allows its time limit anew for each address that a name has."""

    _connect_by: float | None = None

    @property  # type: ignore[misc]  # nothing sets it after the construction
    def socket_connect_timeout(self) -> float:
        if self._connect_by is None:
            self._connect_by = time.monotonic() + (self._socket_connect_timeout or 0.0)
        return max(self._connect_by - time.monotonic(), 0.001)


class _TlsConnection(_TcpConnection, SSLConnection):
    pass


def make_connection(target: Target, host: Host | None, timeout_s: float) -> ConnectionInterface:
    """Return a connection, not yet connected, to `host`, or to the unix socket of the target when that is None."""
    factory: Any = UnixDomainSocketConnection
    options: dict[str, Any] = {
        "db": target.db,
        "username": target.username,
        "password": target.password,
        "client_name": target.client_name,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,  # RESP3 would cost a HELLO, and answers in other shapes
        "retry": Retry(NoBackoff(), 0),  # redis-py re-sends blindly; what may be repeated is known above
        "driver_info": None,  # two CLIENT SETINFO less
    }
    if host is None:
        options["path"] = target.path
    else:
        factory = _TcpConnection if target.tls is None else _TlsConnection
        options |= {"host": host[0], "port": host[1], **(target.tls or {})}
    connection: ConnectionInterface = factory(**options)
    return connection


def ask(connection: ConnectionInterface, *args: Arg) -> Any:
    """Send one command on a connection of its own and close it. Raises what redis-py raises."""
    try:
        connection.send_packed_command((pack(args),), check_health=False)
        return connection.read_response(disable_decoding=True)
    finally:
        connection.disconnect()


class StandaloneRoute:
    """One server at one address."""

    kind: Kind = "standalone"

    def __init__(self, target: Target, timeout_s: float) -> None:
        self._target = target
        self._host = target.hosts[0] if target.hosts else None
        self._timeout_s = timeout_s

    @property
    def where(self) -> str:
        """The address, for messages."""
        return address(self._host) if self._host else self._target.path

    def connection(self) -> ConnectionInterface:
        """Return a new connection to the server."""
        return make_connection(self._target, self._host, self._timeout_s)

    def lost(self, error: Exception) -> None:
        """Nothing to find anew: the address is fixed, and a name is resolved for each connection."""
