"""The reader: claims messages for a subscription, and waits when there is no need to, in Redis or for its receivers."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Sequence

from dtq.errors import ConfigurationError, NewerSchema, RedisUnavailable, TooManyQueues
from dtq.keys import GROUP
from dtq.mq.session import JOIN_LIMIT_S, Session
from dtq.mq.store import ClaimReply
from dtq.redisio import CommandError, Interrupted
from dtq.serverinfo import QuietTime
from dtq.streams import STREAM_LOST, Bell

log = logging.getLogger(__name__)

IDLE_LOOK_S = 5.0
"""How often a subscription looks after its queue when nothing is in flight and nothing delayed."""
BUSY_LOOK_S = 1.0
RISK_LOOK_S = 0.25
"""How often while a claim is about to expire."""
REFILL_S = 0.005
"""How often at most it claims what it does not need yet, or looks for something more urgent than what it has ready."""
PACE_S = 0.002
"""How often at most tokens lead to a claim: of a stream of messages each claim then takes several."""
STREAM_PACE_S = 0.004
"""How often while the claims bring STREAM messages or more."""
STREAM = 3
FAILED_PAUSE_S = 1.0


class TopicBell(Bell):
    """Rings when there may be messages for a subscription, or when one is due earlier than was known."""

    def __init__(self, session: Session) -> None:
        store, queue_name = session.store, session.store.options.name
        wakes = [store.keys.mq_wake(queue_name, topic) for topic in session.topics]
        super().__init__(store.server, [store.keys.mq_due_wake(queue_name), *wakes], GROUP)
        self._come = session.come

    def wait(self, timeout_s: float) -> bool:
        """Block until a token comes, or the streams were lost, at most `timeout_s` seconds: True says to look.

        Raises Interrupted after `interrupt`, RedisUnavailable.
        """
        try:
            return self._read(timeout_s)
        except CommandError as error:
            if error.prefix not in STREAM_LOST:
                raise
        self._come()  # what was put in the meantime woke nobody
        return True


class Reader:
    """The thread that reads. `step` and `rest` can be called by a test without it."""

    def __init__(self, session: Session, quiet: QuietTime) -> None:
        self._session = session
        self._quiet = quiet
        self._bell = TopicBell(session)
        self._thread = threading.Thread(
            target=self._run, name=f"mq reader of {session.store.options.name}", daemon=True
        )
        self._left = set(session.topics)
        """Topics that may hold more than was claimed."""
        self._unsettled = False
        """Whether a claim's reply is not there: it may have taken what nobody here knows of."""
        visibility_s = session.store.options.visibility_timeout_s
        # What is claimed right after a look does not expire before the next one. A fake server does not tell a blocked
        # reader that its stream was deleted.
        idle_s = BUSY_LOOK_S if session.store.server.kind == "memory" else IDLE_LOOK_S
        self._idle_look_s = min(idle_s, max(visibility_s, BUSY_LOOK_S))
        self._look_at = 0.0
        self._due_at = float("inf")
        self._claimed_at = 0.0
        """When it claimed last, but for looks: who puts a message right after one of those does not wait for it."""
        self._pace_s = PACE_S

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """End the thread; `stop` of the session is set."""
        self._bell.interrupt()
        self._session.nudges.put(None)
        if self._thread.is_alive():
            self._thread.join(JOIN_LIMIT_S)
        self._bell.close()

    def _run(self) -> None:
        session = self._session
        while not session.stop.is_set():
            session.outage.pass_gate(session.stop)
            try:
                if session.closing:
                    session.withdraw()  # others may have it before the last message in hand is settled
                    return
                self.step()
                session.outage.over()
                session.failure = None
                self.rest()
            except Interrupted:
                pass  # leaving
            except RedisUnavailable as error:
                session.outage.failed(error)
            except (ConfigurationError, NewerSchema, TooManyQueues) as error:
                session.failure = error
                session.holdings.tokens.put(None)
                session.stop.wait(FAILED_PAUSE_S)
            except Exception:  # a subscription outlives a bad step
                log.exception("a subscription to %s could not read", session.store.options.name)
                session.stop.wait(FAILED_PAUSE_S)

    def step(self) -> None:
        """Claim once."""
        session, quiet = self._session, self._quiet
        if self._unsettled:
            session.settle()
        now = time.monotonic()
        look = now >= self._look_at
        well = look and quiet.ms() >= session.store.options.visibility_timeout_s / 3 * 1000
        rooms = session.holdings.rooms(self._left)
        self._unsettled = True  # also when the script fails half-way: what it took it keeps
        reply = session.claim(rooms, self._extra(), look=look, latest=quiet.latest if well else None)
        self._unsettled = False
        quiet.note_time(reply.now, now)
        if reply.registered:
            self._plan(reply, rooms, now, look)
        else:  # a FLUSHALL, or it was not seen for long; nothing was taken
            session.come()
            self._look_at = 0.0

    def _extra(self) -> int:
        return self._session.receivers if self._session.holdings.empty else 0

    def _plan(self, reply: ClaimReply, rooms: Sequence[tuple[str, int, int]], now: float, looked: bool) -> None:
        self._left = self._left.difference(topic for topic, _, _ in rooms) | reply.left
        if not looked:
            self._claimed_at = now
            self._pace_s = STREAM_PACE_S if len(reply.messages) >= STREAM else PACE_S
        self._due_at = now + reply.next_due_s + 0.001 if reply.next_due_s is not None else float("inf")
        if looked:
            idle_s = BUSY_LOOK_S if reply.delays_in_use else self._idle_look_s
            self._look_at = now + (idle_s, BUSY_LOOK_S, RISK_LOOK_S)[reply.at_risk]

    def rest(self) -> None:
        """Return when there is a reason to claim: a token, room, something due, or a look that is due."""
        session = self._session
        session.resting = True
        try:
            while not (session.stop.is_set() or session.closing) and self._rest_once():
                pass
        finally:
            session.resting = False
        with contextlib.suppress(queue.Empty):
            while True:
                session.nudges.get_nowait()

    def _rest_once(self) -> bool:
        """Wait for one thing. Returns whether to go on resting."""
        session, holdings = self._session, self._session.holdings
        now = time.monotonic()
        left_s = min(self._look_at, self._due_at) - now
        demand = holdings.demand(self._left)
        if left_s <= 0 or demand == "low":
            return False
        if holdings.empty:
            self._bell.wait(left_s)
            self._pause(self._claimed_at + self._pace_s)
            return False
        if demand == "some":  # a little later: then it is more at once
            left_s = self._claimed_at + REFILL_S - now
            if left_s <= 0:
                return False
        try:
            session.nudges.get(timeout=left_s)
        except queue.Empty:
            return True
        if holdings.outranked:  # one was taken: is there something more urgent by now?
            self._pause(self._claimed_at + REFILL_S)
            return False
        return True

    def _pause(self, until: float) -> None:
        left_s = until - time.monotonic()
        if left_s > 0:
            self._session.stop.wait(left_s)
