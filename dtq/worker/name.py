"""A worker's name belongs to one process at a time: leases, leadership and orders from afar go by it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtq.broker import Broker

WATCH_S = 3.0
"""A living worker's heartbeat moves once a second at least."""
_LOOK_S = 0.1


def name_taken(broker: Broker, worker_id: str, stopped: Callable[[], bool], watch_s: float = WATCH_S) -> str | None:
    """Return who lives under this name, in words, or None when it is free.

    A worker that was killed leaves its record behind for a while. It is over when its process is gone from this host,
    else when its heartbeat stands still for `watch_s` seconds.
    Raises RedisUnavailable.
    """
    before = broker.holder_of(worker_id)
    if before is None or (before.host == socket.gethostname() and not _exists(before.pid)):
        return None
    ends_at = time.monotonic() + watch_s
    while time.monotonic() < ends_at and not stopped():
        time.sleep(_LOOK_S)
        now = broker.holder_of(worker_id)
        if now is None:
            return None
        if now != before:
            return f"process {now.pid} on {now.host}"
    return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's, or no number of a process
        return True
    return pid > 0
