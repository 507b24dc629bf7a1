"""The loop that every background actor runs in a thread of its own."""

from __future__ import annotations

import logging
import threading

from dtq.errors import RedisFull, RedisUnavailable
from dtq.outage import Outage

log = logging.getLogger(__name__)

LONGEST_PAUSE_S = 2.0


class Service:
    """A named thread around `step()`, which a test can call without the thread.

    Starting and stopping are idempotent; stopping before the start is allowed. `stop` does not wait, `join` does.
    """

    pause_s = 0.0
    """How long the thread rests after a step that returned False."""

    def __init__(self, name: str, outage: Outage | None = None) -> None:
        """outage: None for an actor that never talks to Redis."""
        self.name = name
        self.beats = 0
        """Rises with every step that did what it should, and with every turn of waiting for Redis."""
        self._outage = outage
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    @property
    def died(self) -> bool:
        """Whether the thread ended although nobody stopped it."""
        return self._thread is not None and not self.alive and not self._stop.is_set()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, also anew after it died."""
        if self._stop.is_set() or self.alive:
            return
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after its step."""
        self._stop.set()
        self.interrupt()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread. Returns whether it has ended (or never started)."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self.alive

    def interrupt(self) -> None:
        """Cut the wait of a step short; overridden by actors that wait on something else than `_stop`."""

    def step(self) -> bool:
        """Do one piece of work. Returns whether there may be more at once; waits only for a bounded time."""
        raise NotImplementedError

    def finish(self) -> None:
        """Called in the thread after the last step."""

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            busy = False
            if self._outage is not None:
                self._outage.pass_gate(self._stop)
            try:
                busy, failures = self.step(), 0
                self.beats += 1
            except RedisUnavailable as error:
                self.beats += 1
                if self._outage is not None:
                    self._outage.failed(error)
                continue
            except RedisFull as error:  # what frees memory goes on, so this holds up nobody else
                self.beats += 1
                failures += 1
                if failures == 1:
                    log.warning("Redis is full: %s", error, extra={"service": self.name})
            except Exception:
                failures += 1
                log.exception("a step failed", extra={"service": self.name})
            if not busy:
                self._stop.wait(self._pause_after(failures))
        try:
            self.finish()
        except (RedisUnavailable, RedisFull) as error:
            log.info("the last step was left out: %s", error, extra={"service": self.name})
        except Exception:
            log.exception("the last step failed", extra={"service": self.name})

    def _pause_after(self, failures: int) -> float:
        if not failures:
            return self.pause_s
        return float(min(LONGEST_PAUSE_S, 0.1 * 2 ** min(failures, 10)))
