"""A subscription from entering to leaving: one consumer name, and what its threads and its messages share."""

from __future__ import annotations

import logging
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Sequence

from dtq.errors import DtqError, MessageLost, TopicFull
from dtq.mq.holdings import Holdings
from dtq.mq.message import Message
from dtq.mq.model import checked_count, checked_seconds, checked_topic, checked_wait, milliseconds
from dtq.mq.room import Room
from dtq.mq.store import ITEMS_A_SCRIPT, Claimed, Store
from dtq.outage import Outage

log = logging.getLogger(__name__)

JOIN_LIMIT_S = 30.0
"""How long leaving waits for a thread; calls of Redis end long before that."""


class Session:
    """What belongs to one consumer name. Safe to use from any thread of its process."""

    def __init__(self, store: Store, room: Room, classes: Sequence[Sequence[str]], prefetch: int) -> None:
        self.store = store
        self.topics = [topic for topics in classes for topic in topics]
        self.consumer = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
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

    def deliver(self, claimed: Iterable[Claimed]) -> None:
        """Let receivers have what was claimed."""
        self.holdings.add(Message(self, one) for one in claimed)

    def _count_receiver(self, number: int) -> None:
        with self._counting:
            self.receivers += number

    # --- settling -----------------------------------------------------------------------------------------------------

    def acknowledge(self, message: Message) -> bool:
        """See `Message.acknowledge`."""
        self.require_own_process()
        if message.settled:
            return False
        try:
            (removed,) = self.store.acknowledge(self.consumer, [(*message.id, message.key)])
        finally:  # not before: what is not held is given back when a claim's reply was lost
            self.holdings.forget(message)
        message.settled, message.lost = True, not removed
        return removed

    def acknowledge_later(self, message: Message) -> None:
        """See `Subscription.acknowledge_later`."""
        self.require_own_process()
        if not message.settled:
            message.settled = True
            self.holdings.finish_later(message)
            self.work.put(None)

    def flush(self) -> None:
        """Write down what is done. Raises RedisUnavailable, RedisFull: it is kept, and tried again."""
        with self._flushing:
            while done := self.holdings.done(ITEMS_A_SCRIPT):
                removed = self.store.acknowledge(self.consumer, [(*message.id, message.key) for message in done])
                self.holdings.written(len(done))
                for message, was_removed in zip(done, removed, strict=True):
                    message.lost = not was_removed

    def release(
        self, message: Message, topic: str | None, max_size: int, delay_s: float, timeout_s: float | None
    ) -> None:
        """See `Message.release`."""
        self.require_own_process()
        target = message.topic if topic is None else checked_topic(topic)
        checked_count("max_size", max_size)
        delay_ms = milliseconds(checked_seconds("delay_s", delay_s))
        deadline = time.monotonic() + checked_wait(timeout_s)
        if message.settled:
            raise MessageLost(f"message {message.key} was settled already")
        while True:
            left_s = deadline - time.monotonic()
            code, now_ms = self.store.release(
                self.consumer,
                (*message.id, message.key),
                target,
                max_size=max_size,
                delay_ms=delay_ms,
                waiting=left_s > 0,
            )
            if code == "DONE":
                message.settled = True
                self.holdings.forget(message)
                return
            if code == "LOST":
                self.holdings.lose(message)
                raise MessageLost(f"message {message.key} belongs to another consumer, or was acknowledged by one")
            if left_s <= 0:
                raise TopicFull(
                    f"topic {target} of {self.store.options.name} holds {max_size} messages (max_size); the message is "
                    "still held",
                    topic=target,
                )
            self._room.wait(target, now_ms, left_s)

    # --- leaving ------------------------------------------------------------------------------------------------------

    def withdraw(self) -> None:
        """Give back what nobody was handed, in its old place, not counted as delivered."""
        for message in self.holdings.withdraw():
            message.lost = True
        self.store.settle(self.consumer, self.topics, [message.id for message in self.holdings.held()])

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
