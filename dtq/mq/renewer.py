"""The renewer: keeps what a subscription holds, and writes down what was acknowledged to be written later."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time

from dtq.errors import RedisFull, RedisUnavailable
from dtq.mq.session import JOIN_LIMIT_S, Session

log = logging.getLogger(__name__)

FAILED_PAUSE_S = 0.5


class Renewer:
    """The thread that renews. `step` can be called by a test without it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._interval_s = session.store.options.visibility_timeout_s / 3
        self._renew_at = time.monotonic() + self._interval_s
        self._thread = threading.Thread(
            target=self._run, name=f"mq renewer of {session.store.options.name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """End the thread; `stop` of the session is set."""
        self._session.work.put(None)
        if self._thread.is_alive():
            self._thread.join(JOIN_LIMIT_S)

    def _run(self) -> None:
        session = self._session
        while not session.stop.is_set():
            session.outage.pass_gate(session.stop)
            try:
                self.step()
                session.outage.over()
            except RedisUnavailable as error:
                session.outage.failed(error)
            except RedisFull as error:
                log.warning("a subscription to %s could not write: %s", session.store.options.name, error)
                session.stop.wait(FAILED_PAUSE_S)
            except Exception:  # a subscription outlives a bad step
                log.exception("a subscription to %s could not renew", session.store.options.name)
                session.stop.wait(FAILED_PAUSE_S)

    def step(self) -> None:
        """Wait for something to do, and do it."""
        session = self._session
        left_s = self._renew_at - time.monotonic()
        if left_s > 0 and not (session.holdings.left_to_write or session.holdings.doubtful):
            with contextlib.suppress(queue.Empty):
                session.work.get(timeout=left_s)
        if time.monotonic() >= self._renew_at or session.holdings.doubtful:
            self.renew()
        session.write_done()

    def renew(self) -> None:
        """Begin all claims anew; the next time is counted from when this one was asked for."""
        asked_at = time.monotonic()
        self._session.renew()
        self._renew_at = asked_at + self._interval_s
