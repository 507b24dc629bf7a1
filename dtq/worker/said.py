"""What may happen thousands of times at once is said in a line or two."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

PAUSE_S = 1.0
"""Between two lines about the same thing."""


class Summary:
    """Logs a thing when it first happens; what follows within a second is added up and said together.

    Any thread may add; somebody has to flush now and then.
    """

    def __init__(self, log: logging.Logger, message: str) -> None:
        """message: with `%d` for how often it has happened since it was last said."""
        self._log = log
        self._message = message
        self._lock = threading.Lock()
        self._number = 0
        self._extra: Mapping[str, object] = {}
        self._next_at = 0.0

    def add(self, number: int, extra: Mapping[str, object]) -> None:
        """Note that it happened `number` times. extra: what the log record tells of the first of them."""
        with self._lock:
            if not self._number:
                self._extra = extra
            self._number += number
        self.flush()

    def flush(self, *, now: bool = False) -> None:
        """Say what has not been said yet, unless the last line is too fresh. now: in any case."""
        with self._lock:
            if not self._number or (not now and time.monotonic() < self._next_at):
                return
            number, self._number = self._number, 0
            self._next_at = time.monotonic() + PAUSE_S
        self._log.warning(self._message, number, extra=self._extra)
