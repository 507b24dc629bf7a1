"""Carries bulk jobs on beside the requests of a web process: those that take longer than an answer may, and those whose
process has died.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from dtq.errors import RedisUnavailable

if TYPE_CHECKING:
    from dtq.web.engine import Engine

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""How often a process looks for jobs that nobody works on."""
JOIN_S = 5.0
TURN_S = 5.0
"""For how long a job goes on before others have their turn: a slow one must not hold up a short one."""


class BulkRunner:
    """One thread a process, which does one job after the other. It starts with the first that asks for it."""

    def __init__(self, shared: Engine) -> None:
        self._shared = shared
        self._nudged = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if it does not run yet."""
        with self._lock:
            if self._thread is None and not self._shared.stopping.is_set():
                self._thread = threading.Thread(target=self._run, name="dtq-bulk", daemon=True)
                self._thread.start()

    def nudge(self) -> None:
        """Let it look for work now."""
        self.start()
        self._nudged.set()

    def join(self) -> None:
        """Wait until it has ended, some seconds at most; the process must be stopping."""
        self._nudged.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def step(self) -> bool:
        """Carry on each of the jobs that wait now. Returns whether one is not done. Raises RedisUnavailable."""
        client, stopping = self._shared.client, self._shared.stopping
        left = False
        for job in client.bulk.waiting():
            if stopping.is_set():
                return False
            turn_s = TURN_S + (0.0 if job.wish.rate is None else 1 / job.wish.rate)
            left |= not client.run_bulk(job, stop=stopping, within_s=turn_s).ended
        return left

    def _run(self) -> None:
        busy = False
        while not self._shared.stopping.is_set():
            self._nudged.wait(0 if busy else LOOK_S)
            self._nudged.clear()
            try:
                busy = not self._shared.stopping.is_set() and self.step()
            except RedisUnavailable:  # the requests say so; the jobs are looked for again
                busy = False
            except Exception:  # a service outlives a bad step
                busy = False
                log.exception("bulk jobs could not be carried on")
