"""`memory://`: a fake server inside this process, for tests and for trying a snippet.

Imported only when such a URL is used: fakeredis costs a process several MiB.
"""

from __future__ import annotations

import threading
from typing import Any

from fakeredis import FakeServer
from fakeredis._clients import FakeRedisConnection
from redis.backoff import NoBackoff
from redis.connection import ConnectionInterface
from redis.exceptions import ResponseError
from redis.retry import Retry

from dtq.redisio.urls import Kind, Target

_servers: dict[str, FakeServer] = {}
_servers_lock = threading.Lock()

# Where fakeredis answers in other words than Redis, by how its answer begins
_CORRECTIONS = {
    "BUSYGROUP ": "BUSYGROUP Consumer Group name already exists",
    "The XGROUP subcommand requires the key to exist": "NOGROUP No such key or consumer group",
}


class MemoryRoute:
    """The fake server of one name; all connections of this process to `memory://name` share it."""

    kind: Kind = "memory"

    def __init__(self, target: Target) -> None:
        with _servers_lock:
            self._server = _servers.setdefault(target.path, FakeServer(version=(7, 4)))
        self._db = target.db
        self.where = target.safe_url

    def connection(self) -> ConnectionInterface:
        """Return a new connection to the fake server."""
        return _Connection(server=self._server, db=self._db, protocol=2, retry=Retry(NoBackoff(), 0), driver_info=None)

    def lost(self, error: Exception) -> None:
        """Nothing to find anew."""


class _Connection(FakeRedisConnection):
    def read_response(self, disable_decoding: bool = False, **options: Any) -> Any:
        try:
            return super().read_response(disable_decoding=disable_decoding, **options)
        except ResponseError as error:
            for beginning, correction in _CORRECTIONS.items():
                if str(error).removeprefix("ERR ").startswith(beginning):
                    raise ResponseError(correction) from error
            raise
