"""DTQ_DURABLE_WRITES: an accepted task is told only once it is on disk, and on a replica where there is one.

What is waited for is a write of our own after the tasks, on the server that still has them: when it is safe, so is all
that was written before it. The tasks are looked for in the same breath, since a failover in between would have the new
master confirm what it never got.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from dtq.errors import ConfigurationError, DtqError, RedisUnavailable
from dtq.keys import Keys
from dtq.redisio import Arg, CommandError, Server
from dtq.serverinfo import server_info

PATIENCE_S = 3.0
"""`appendfsync everysec` syncs once a second, and a second later when the disk is slow."""
FRESH_S = 5.0
"""How long it is believed what the server can do."""
_BARRIER_MS = 60_000


class _Way(NamedTuple):
    """How this server is waited for: each of these, where it is there, must answer at least 1."""

    disk: tuple[Arg, ...] | None
    replica: tuple[Arg, ...] | None
    """WAIT and not WAITAOF: replicas often keep no append-only file, and would never be counted."""

    @property
    def commands(self) -> list[tuple[Arg, ...]]:
        return [command for command in self if command is not None]


class Durability:
    """Waits for writes. Safe to use from any thread."""

    def __init__(self, server: Server, keys: Keys) -> None:
        """server: with a time limit beyond PATIENCE_S, see `patient_server`."""
        self._server = server
        self._keys = keys
        self._lock = threading.Lock()
        self._way: _Way | None = None
        self._look_at = 0.0

    def require(self) -> None:
        """Return when the server can do what is asked. Raises ConfigurationError, RedisUnavailable."""
        self._find_way()

    def confirm(self, task_ids: Sequence[str]) -> None:
        """Return once these tasks are safe.

        Raises RedisUnavailable when that is not known in time (context["reason"] is "not_durable"): the tasks may run
        all the same. Raises ConfigurationError as `require`.
        """
        way = self._find_way()
        tasks = [self._keys.task(task_id) for task_id in task_ids]
        barrier = ("SET", self._keys.barrier(), "1", "PX", _BARRIER_MS)
        try:
            found, _, *reached = self._server.pipeline([("EXISTS", *tasks), barrier, *way.commands])
        except CommandError:  # the server is another one by now, or its append-only file was switched off
            self._way = None
            self._find_way()
            raise _unsure("it could not be waited for") from None
        if found < len(tasks):
            raise _unsure(f"{len(tasks) - found} of them are gone: Redis has failed over")
        if any((answer[0] if isinstance(answer, list) else answer) < 1 for answer in reached):
            self._way = None
            raise _unsure(f"it took longer than {PATIENCE_S:g} s")

    def close(self) -> None:
        """Close the connections."""
        self._server.close()

    def _find_way(self) -> _Way:
        with self._lock:
            if self._way is None or time.monotonic() >= self._look_at:
                self._way = _way_of(self._server)
                self._look_at = time.monotonic() + FRESH_S
            return self._way


def patient_server(url: str, namespace: str) -> Server:
    """Return a server for `Durability`: its connections wait for longer than others may."""
    return Server.connect(url, namespace=namespace, timeout_s=2 * PATIENCE_S + 1.0)


def _way_of(server: Server) -> _Way:
    replicas = int(server_info(server, "replication").get("connected_slaves", "0"))
    patience_ms = round(PATIENCE_S * 1000)
    on_disk = server_info(server, "persistence").get("aof_enabled") == "1"
    way = _Way(
        disk=("WAITAOF", 1, 0, patience_ms) if on_disk and _knows(server, "WAITAOF") else None,
        replica=("WAIT", 1, patience_ms) if replicas else None,
    )
    if way.commands:
        return way
    told = server_info(server, "server")
    version = told.get("valkey_version") or told.get("redis_version") or "of an unknown version"
    lacks = "has no WAITAOF" if on_disk else "keeps no append-only file"
    raise ConfigurationError(
        f"DTQ_DURABLE_WRITES=true cannot be kept here: the server ({version}) {lacks} and has no replica; allowed with "
        "appendonly yes on Redis 7.2 or newer or Valkey, or with a replica"
    )


def _knows(server: Server, command: str) -> bool:
    try:
        return bool(server.call("COMMAND", "INFO", command)[0])
    except DtqError:  # not for this user: what is not known is not promised
        return False


def _unsure(why: str) -> RedisUnavailable:
    return RedisUnavailable(
        f"accepted, but not known to be on disk: {why}. Submit again with the same idempotency key, or look for it",
        reason="not_durable",
    )
