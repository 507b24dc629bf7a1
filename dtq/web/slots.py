"""Who may hold a thread for long: sockets and requests that wait, within bounds, so that others always find one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from dtq.settings import Settings
from dtq.web.errors import TooManySockets, TooManySocketsOfAddress

RETRY_AFTER_S = 5


class Slots:
    """Counts the threads of a process that are held. Safe to use from any thread.

    Each kind has a bound of its own, and together they leave an eighth of the threads, one at least, to requests that
    are answered at once.
    """

    def __init__(self, settings: Settings) -> None:
        threads = settings.web_threads
        self.sockets = 0
        self.waiters = 0
        self.most_sockets = settings.max_websockets
        self.most_waiters = threads // 2
        self._most = max(settings.max_websockets, threads - max(1, threads // 8))
        self._most_of_address = settings.max_websockets_per_ip
        self._of_address: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def socket(self, address: str) -> Iterator[None]:
        """Hold a thread for a socket of a client. address: "" where it is not known; such are not counted apart.

        Raises TooManySockets, TooManySocketsOfAddress.
        """
        with self._lock:
            if self.sockets >= self.most_sockets or self.sockets + self.waiters >= self._most:
                raise TooManySockets(
                    f"this process holds {self.sockets} WebSockets and can hold no more now (DTQ_MAX_WEBSOCKETS)",
                    retry_after=RETRY_AFTER_S,
                )
            if address and self._of_address[address] >= self._most_of_address:
                raise TooManySocketsOfAddress(
                    f"this address has {self._of_address[address]} WebSockets already (DTQ_MAX_WEBSOCKETS_PER_IP)",
                    retry_after=RETRY_AFTER_S,
                )
            self.sockets += 1
            self._of_address[address] += 1
        try:
            yield
        finally:
            with self._lock:
                self.sockets -= 1
                self._of_address[address] -= 1
                if not self._of_address[address]:
                    del self._of_address[address]

    @contextmanager
    def waiter(self) -> Iterator[bool]:
        """Hold a thread for a request that waits. Yields whether it may."""
        with self._lock:
            room = self.waiters < self.most_waiters and self.sockets + self.waiters < self._most
            self.waiters += room
        try:
            yield room
        finally:
            with self._lock:
                self.waiters -= room
