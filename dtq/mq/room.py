"""Waiting for room in a full topic, without a connection for each that waits.

Of all callers of one queue object that wait, one listens, on the one connection that they have together, to what is
said when room is made; it tells the others. Whoever makes room says so only while somebody asks, and a jittered poll
is the safety net.
"""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from collections.abc import Callable

from dtq.errors import DtqError
from dtq.redisio import Server

POLL_S = 1.0
"""How long one waits at most before it looks again, minus up to a half."""
_TOKENS = 100


class _Waiter:
    """One caller that waits."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.told = False
        """Whether there may be room for it."""
        self.nudges: queue.SimpleQueue[None] = queue.SimpleQueue()


class Room:
    """The callers of one queue object that wait for room. Safe to use from any thread."""

    def __init__(self, server: Server, stream: str, uniform: Callable[[], float] = random.random) -> None:
        self._server = server
        self._stream = stream
        self._uniform = uniform
        self._lock = threading.Lock()
        self._waiters: list[_Waiter] = []
        self._listening = threading.Lock()
        self._heard = ""
        """The entry up to which all who wait have heard; the next who listens goes on there."""

    def wait(self, topic: str, since_ms: int, timeout_s: float) -> None:
        """Return when there may be room in the topic, at the latest after `timeout_s` seconds, or after a poll's time.

        since_ms: Redis's time when there was none: what was said since is heard.
        """
        until = time.monotonic() + min(timeout_s, POLL_S * (1.0 - self._uniform() / 2))
        waiter = _Waiter(topic)
        with self._lock:
            if not self._waiters:
                self._heard = f"{since_ms - 1}-0"
            self._waiters.append(waiter)
        try:
            while not waiter.told and (left_s := until - time.monotonic()) > 0:
                if self._listening.acquire(blocking=False):
                    try:
                        self._listen(waiter, until)
                    finally:
                        self._listening.release()
                else:
                    with contextlib.suppress(queue.Empty):
                        waiter.nudges.get(timeout=left_s)
        finally:
            with self._lock:
                self._waiters.remove(waiter)
                if self._waiters:  # whoever comes first listens from now on
                    self._waiters[0].nudges.put(None)

    def _listen(self, waiter: _Waiter, until: float) -> None:
        """Hear for all until this one is told, or its time is up."""
        caller = self._server.blocking()
        try:
            while not waiter.told and (left_s := until - time.monotonic()) > 0:
                try:
                    reply = caller.call(
                        *("XREAD", "COUNT", _TOKENS, "BLOCK", max(1, round(left_s * 1000))),
                        *("STREAMS", self._stream, self._heard),
                        block_s=left_s,
                    )
                except DtqError:  # Redis is away: the put itself will find out, and say so
                    with contextlib.suppress(queue.Empty):
                        waiter.nudges.get(timeout=min(left_s, 0.1))
                    return
                for entry, fields in reply[0][1] if reply else ():
                    self._heard = entry.decode()
                    self._tell(fields[1].decode(), int(fields[3]))
        finally:
            caller.close()

    def _tell(self, topic: str, number: int) -> None:
        """Tell as many of those that wait for the topic as there are places, in the order in which they came."""
        with self._lock:
            for waiter in self._waiters:
                if number > 0 and waiter.topic == topic and not waiter.told:
                    waiter.told = True
                    waiter.nudges.put(None)
                    number -= 1
