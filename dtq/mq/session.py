"""A subscription from entering to leaving: one consumer name, and what its threads and its messages share."""

from __future__ import annotations

import logging
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Sequence

from dtq.errors import DtqError, MessageLost, RedisUnavailable, TopicFull
from dtq.mq.acknowledging import Acknowledgement, Acknowledger
from dtq.mq.holdings import Holdings
from dtq.mq.message import Message, Moving
from dtq.mq.model import checked_count, checked_seconds, checked_topic, checked_wait, milliseconds
from dtq.mq.operations import Operation
from dtq.mq.room import Room
from dtq.mq.store import ITEMS_A_SCRIPT, ClaimReply, Store, Target
from dtq.outage import Outage

log = logging.getLogger(__name__)

JOIN_LIMIT_S = 30.0
"""How long leaving waits for a thread; calls of Redis end long before that."""


class Session:
    """What belongs to one consumer name. Safe to use from any thread of its process."""

    def __init__(self, store: Store, room: Room, classes: Sequence[Sequence[str]], prefetch: int) -> None:
        self.store = store
        self.topics = [topic for topics in classes for topic in topics]
        self.consumer = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"
        self.holdings = Holdings(classes, prefetch)
        self.outage = Outage(who=f"the subscription to {store.options.name}")
        self.stop = threading.Event()
        """Set when the threads are to end."""
        self.closing = False
        """Set, without a lock, by whoever closes the subscription, perhaps in a signal handler."""
        self.failure: DtqError | None = None
        """Why nothing can be claimed, when waiting will not help."""
        self.resting = False
        """Whether the reader waits for its receivers."""
        self.receivers = 0
        """How many wait for a message."""
        self.nudges: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes the reader while it waits for its receivers."""
        self.work: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes the renewer."""
        self._last_claim = 0
        self._unwritten: tuple[list[Message], Operation] | None = None
        """What was asked to be acknowledged later, together, without an answer: it is asked again as it was."""
        self._acknowledger = Acknowledger(store, self.consumer)
        self._room = room
        self._pid = os.getpid()
        self._flushing = threading.Lock()
        self._counting = threading.Lock()

    @property
    def foreign(self) -> bool:
        """Whether this is a forked child: the consumer belongs to the parent."""
        return os.getpid() != self._pid

    def require_own_process(self) -> None:
        """Raise RuntimeError in a forked child."""
        if self.foreign:
            raise RuntimeError("this subscription belongs to the parent process; subscribe anew in the child")

    # --- receiving ----------------------------------------------------------------------------------------------------

    def receive(self, timeout_s: float) -> Message | None:
        """Return the most urgent message, waiting at most `timeout_s` seconds; None when none came, or on closing."""
        deadline = time.monotonic() + timeout_s
        while self._token(deadline):
            if self.closing:
                self.holdings.tokens.put(None)  # for the next who waits
                return None
            message = self.holdings.take()
            if self.resting:
                self.nudges.put(None)
            if message is not None:  # else the token's message was lost in the meantime
                return message
            if self.holdings.doubtful:
                self.work.put(None)
        return None

    def _token(self, deadline: float) -> bool:
        """Wait for a token. Returns whether one came."""
        try:
            self.holdings.tokens.get_nowait()
        except queue.Empty:
            self._count_receiver(1)
            try:
                self.holdings.tokens.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return False
            finally:
                self._count_receiver(-1)
        return True

    def come(self) -> None:
        """Register with Redis, also anew after a FLUSHALL."""
        self.store.subscribe(self.consumer, self.topics, socket.gethostname(), os.getpid())

    def claim(
        self, rooms: Sequence[tuple[str, int, int]], extra: int, *, look: bool, latest: float | None
    ) -> ClaimReply:
        """Claim, and let receivers have what was claimed; see `Store.claim`."""
        self._last_claim += 1
        asked_at = time.monotonic()
        reply = self.store.claim(self.consumer, rooms, extra, number=self._last_claim, look=look, latest=latest)
        claims_end = asked_at + self.store.options.visibility_timeout_s  # the answer may have taken long
        self.holdings.add((Message(self, one) for one in reply.messages), claims_end)
        return reply

    def settle(self) -> None:
        """Give back what is owned and not held: the last claim's reply was lost, or nobody was handed it."""
        held = [message.id for message in self.holdings.held()]
        self.store.settle(self.consumer, self.topics, held, self._last_claim)

    def renew(self) -> None:
        """Begin all claims anew; what was lost is marked, and handed to nobody."""
        held, asked_at = self.holdings.held(), time.monotonic()
        kept = []
        for message, is_kept in zip(held, self.store.renew(self.consumer, [one.id for one in held]), strict=True):
            if is_kept:
                kept.append(message)
            else:
                self.holdings.lose(message)
        self.holdings.renewed(kept, asked_at + self.store.options.visibility_timeout_s)

    def _count_receiver(self, number: int) -> None:
        with self._counting:
            self.receivers += number

    # --- settling -----------------------------------------------------------------------------------------------------

    def acknowledge(self, message: Message) -> bool:
        """See `Message.acknowledge`."""
        self.require_own_process()
        if message.settled:
            return False
        asked = self._asked_before(message)
        one = asked if isinstance(asked, Acknowledgement) else Acknowledgement((*message.id, message.key))
        try:
            removed = self._acknowledger.write(one)
        except RedisUnavailable:
            message.unanswered = one
            raise
        finally:  # not before: what is not held is given back when a claim's reply was lost
            self.holdings.forget(message)
        if removed or not message.settled:  # else another thread has done it in the meantime
            message.settled, message.lost = True, not removed
        return removed

    def _asked_before(self, message: Message) -> Acknowledgement | Moving | None:
        """Return what was asked without an answer, to ask it again: it must not be done a second time."""
        with self._counting:
            asked, message.unanswered = message.unanswered, None
        return asked

    def acknowledge_later(self, message: Message) -> None:
        """See `Subscription.acknowledge_later`."""
        self.require_own_process()
        if not message.settled:
            message.settled = True
            self.holdings.finish_later(message)
            self.work.put(None)

    def flush(self) -> None:
        """Write down what is done by now. Raises RedisUnavailable, RedisFull: it is kept, and tried again."""
        left = self.holdings.left_to_write
        while left > 0 and (written := self.write_done()):
            left -= written

    def write_done(self) -> int:
        """Write down what is done, one script's worth: whoever finishes more meanwhile must not keep it from renewing.

        Returns how much that was. Raises as `flush`.
        """
        with self._flushing:
            if self._unwritten is None:
                done = self.holdings.done(ITEMS_A_SCRIPT)
                if not done:
                    return 0
                self._unwritten = done, self.store.operations.take()
            done, operation = self._unwritten
            removed = self.store.acknowledge(self.consumer, [(*one.id, one.key) for one in done], operation)
            self._unwritten = None
            self.store.operations.give_back(operation)
            self.holdings.written(len(done))
            for message, was_removed in zip(done, removed, strict=True):
                message.lost = not was_removed
            return len(done)

    def release(
        self, message: Message, topic: str | None, max_size: int, delay_s: float, timeout_s: float | None
    ) -> None:
        """See `Message.release`."""
        self.require_own_process()
        to = Target(
            message.topic if topic is None else checked_topic(topic),
            checked_count("max_size", max_size),
            milliseconds(checked_seconds("delay_s", delay_s)),
        )
        deadline = time.monotonic() + checked_wait(timeout_s)
        if message.settled:
            raise MessageLost(f"message {message.key} was settled already")
        while True:
            left_s = deadline - time.monotonic()
            code, now_ms = self._move(message, to, waiting=left_s > 0)
            if code == "DONE":
                self.holdings.forget(message)
                message.settled, message.lost = True, False
                return
            if code == "LOST":
                self.holdings.lose(message)
                message.lost = True
                raise MessageLost(f"message {message.key} belongs to another consumer, or was acknowledged by one")
            if left_s <= 0:
                raise TopicFull(
                    f"topic {to.topic} of {self.store.options.name} holds {max_size} messages (max_size); the message "
                    "is still held",
                    topic=to.topic,
                )
            self._room.wait(to.topic, now_ms, left_s)

    def _move(self, message: Message, to: Target, *, waiting: bool) -> tuple[str, int]:
        asked = self._asked_before(message)
        if isinstance(asked, Acknowledgement) or asked is None or asked.target != to:
            asked = Moving(to, self.store.operations.take())
        try:
            answer = self.store.release(self.consumer, (*message.id, message.key), to, asked.operation, waiting=waiting)
        except RedisUnavailable:
            message.unanswered = asked
            raise
        self.store.operations.give_back(asked.operation)
        return answer

    # --- leaving ------------------------------------------------------------------------------------------------------

    def withdraw(self) -> None:
        """Give back what nobody was handed, in its old place, not counted as delivered."""
        for message in self.holdings.withdraw():
            message.lost = True
        self.settle()

    def hand_back(self) -> None:
        """Give back all that is owned, at once and in its old place.

        When Redis is away this is said in the log: the visibility timeout does it then.
        """
        try:
            self.flush()
            self.withdraw()
            self.store.leave(self.consumer, self.topics)
        except DtqError as error:
            log.warning(
                "a subscription to %s could not hand back what it held, it is delivered again after the visibility "
                "timeout: %s",
                *(self.store.options.name, error),
            )
        for message in self.holdings.held():
            self.holdings.lose(message)
