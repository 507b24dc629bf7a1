"""What the engine and the message queue share of Redis streams: wake streams, and waiting on them.

Workers never block on the bands: a blocked read over ten streams wakes on whichever was first and takes what it woke
for, p0 before p9. They block on wake streams, whose tokens carry nothing, and then claim by script in strict order.
NOACK: a token is gone once read, and the consumer's name does not matter, so all waiters share one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from dtq.errors import InvalidTask
from dtq.keys import GROUP, LEADER_GROUP, Keys
from dtq.redisio import CommandError, Server

WAKE_MAXLEN = 64
WAKE_KEEP_MS = 25 * 3_600_000
"""For how long a wake stream outlives the last tick of a worker that waits on it."""
STREAM_LOST = ("NOGROUP", "UNBLOCKED")
"""First words of Redis for a first visit or a FLUSHALL, and for a FLUSHALL or DEL under a blocked reader."""
_TOKENS = 100
_WAITER = "waiter"
_ENTRY = re.compile(r"[1-9][0-9]{0,14}-[0-9]{1,15}")


def ensure_group(server: Server, stream: str, group: str) -> None:
    """Make the stream and its group when they are not there. Raises RedisUnavailable, RedisFull."""
    try:
        server.call("XGROUP", "CREATE", stream, group, "0", "MKSTREAM")
    except CommandError as error:
        if error.prefix != "BUSYGROUP":
            raise


def ring(server: Server, keys: Keys, queue: str) -> None:
    """Add a token that wakes one idle worker of a queue. Raises RedisUnavailable, RedisFull."""
    server.call("XADD", keys.wake(queue), "MAXLEN", "~", WAKE_MAXLEN, "*", "t", "")


def newest_id(until: float | None, cursor: str | None) -> str:
    """Return where a read from the newest end of a stream begins: before the entry `cursor`, at `until` at the latest.

    until: seconds since the epoch, inclusive. Raises InvalidTask for a cursor that is none.
    """
    if cursor is not None:
        if not _ENTRY.fullmatch(cursor):
            message = "not a cursor; use next_cursor of the page before, unchanged"
            raise InvalidTask(f"cursor: {message}", errors=[{"pointer": "/cursor", "message": message}])
        return f"({cursor}"
    return "+" if until is None else str(max(0, int(until * 1000)))


def oldest_id(since: float | None) -> str:
    """Return where such a read ends. since: seconds since the epoch, inclusive."""
    return "-" if since is None else str(max(0, math.ceil(since * 1000)))


class Bell:
    """Waits for a token on any of several wake streams, on a connection of its own."""

    def __init__(self, server: Server, streams: Sequence[str], group: str) -> None:
        """streams: read in this order; a waiter takes all tokens that are there, since its claim rings on."""
        self._server = server
        self._streams = tuple(streams)
        self._group = group
        self._caller = server.blocking()

    def wait(self, timeout_s: float) -> bool:
        """Block until a token comes, at most `timeout_s` seconds. Returns whether one came.

        Raises Interrupted after `interrupt`, RedisUnavailable.
        """
        for _ in range(2):
            try:
                return self._read(timeout_s)
            except CommandError as error:
                if error.prefix not in STREAM_LOST:
                    raise
            self._ensure()
        return True  # it happened twice in one wait: look, and wait again

    def _read(self, timeout_s: float) -> bool:
        reply = self._caller.call(
            *("XREADGROUP", "GROUP", self._group, _WAITER, "COUNT", _TOKENS),
            *("BLOCK", max(1, round(timeout_s * 1000)), "NOACK"),
            *("STREAMS", *self._streams, *(">" for _ in self._streams)),
            block_s=timeout_s,
        )
        return bool(reply)

    def _ensure(self) -> None:
        for stream in self._streams:
            ensure_group(self._server, stream, self._group)

    def interrupt(self) -> None:
        """End a wait in progress and refuse the next ones, from any thread."""
        self._caller.interrupt()

    def close(self) -> None:
        """Give the connection back for good."""
        self._caller.close()


class Doorbell(Bell):
    """Rings when there may be work in one of the queues of a worker."""

    def __init__(self, server: Server, keys: Keys, queues: Sequence[str]) -> None:
        super().__init__(server, [keys.wake(queue) for queue in queues], GROUP)

    def _ensure(self) -> None:
        super()._ensure()
        for stream in self._streams:  # a queue that is never used is never swept
            self._server.call("PEXPIRE", stream, WAKE_KEEP_MS)


class LeaderBell(Bell):
    """Rings for the leader when something became due earlier than it knows, or when the lock was given up."""

    def __init__(self, server: Server, keys: Keys) -> None:
        super().__init__(server, [keys.scheduler_wake()], LEADER_GROUP)
