"""What the threads of a worker, or of a subscription, know together about Redis being away.

It is said once, and one of them asks at a time.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from dtq.errors import RedisUnavailable

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0
"""Redis that is coming back, or refuses writes, is asked once in this time by the whole worker, plus jitter."""
QUIET_S = 10.0
"""An outage that begins so soon after the last one is the same trouble: not said again, and the pauses grow on."""


class Outage:
    """Closed while Redis is away. Whoever comes when a pause is over asks for all; its success lets everybody on."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[], float] = random.random,
        longest_pause_s: float = LONGEST_PAUSE_S,
        who: str = "the worker",
    ) -> None:
        """who: as the log calls it."""
        self.away = False
        self._clock = clock
        self._uniform = uniform
        self._longest_pause_s = longest_pause_s
        self._who = who
        self._lock = threading.Lock()
        self._back = threading.Event()
        self._since = 0.0
        self._ended_at = float("-inf")
        self._said = False
        self._pauses = 0
        self._next_try = 0.0

    def failed(self, error: RedisUnavailable) -> None:
        """Note a failed call. The first one of an outage is logged."""
        with self._lock:
            now = self._clock()
            if not self.away:
                self.away, self._since, self._next_try = True, now, now
                self._back.clear()
                self._said = now - self._ended_at >= QUIET_S
                if self._said:
                    self._pauses = 0
                    log.warning("Redis is away, %s keeps what it has and tries again: %s", self._who, error)
            if now >= self._next_try:  # several actors may fail in the same moment: that is one failure
                self._pause(now)

    def over(self) -> None:
        """Note a successful call. Cheap when there is no outage."""
        if not self.away:
            return
        with self._lock:
            if self.away:
                self.away, self._ended_at = False, self._clock()
                self._back.set()
                if self._said:
                    log.warning("Redis is back after %.1f s", self._ended_at - self._since)

    def pass_gate(self, stop: threading.Event) -> None:
        """Return when the caller may ask Redis: at once, when a pause is over, or when `stop` is set."""
        while self.away and not stop.is_set():
            with self._lock:
                now = self._clock()
                if now >= self._next_try:
                    self._pause(now)
                    return
                wait_s = self._next_try - now
            self._back.wait(min(wait_s, 0.2))

    def _pause(self, now: float) -> None:
        pause_s = min(self._longest_pause_s, FIRST_PAUSE_S * 2.0 ** min(self._pauses, 10))
        self._pauses += 1
        self._next_try = now + pause_s * (1.0 + 0.3 * self._uniform())
