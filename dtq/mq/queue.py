"""One reliable message queue as a program uses it: put, subscribe, look, operate."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence

from dtq.errors import TopicFull
from dtq.model import Actor
from dtq.mq.dead import DeadMessages
from dtq.mq.model import (
    MOST_PREFETCH,
    PROGRAM,
    Consumer,
    Put,
    QueueStats,
    Stored,
    checked_count,
    checked_data,
    checked_key,
    checked_seconds,
    checked_topic,
    checked_wait,
    fresh_key,
    milliseconds,
    priority_classes,
)
from dtq.mq.queries import MessageQueries
from dtq.mq.room import Room
from dtq.mq.store import ITEMS_A_SCRIPT, PutItem, Store
from dtq.mq.subscription import Subscription
from dtq.serverinfo import QuietTime

BYTES_A_SCRIPT = 4 * 1_048_576


class MessageQueue:
    """A queue of opaque messages, routed by topic, delivered at least once. Safe to use from any thread.

    It belongs to the process that made it: use in a forked child is a RuntimeError.
    """

    def __init__(self, store: Store, queries: MessageQueries) -> None:
        """Use `Client.queue`. Nothing is sent yet."""
        self.name = store.options.name
        self._options = store.options
        self._store = store
        self._queries = queries
        self._room = Room(store.server, store.keys.mq_room(self.name))
        self._quiet = QuietTime(store.server)
        self._pid = os.getpid()
        self.dead = DeadMessages(self._store, self._queries)
        """What could not be read, and what was claimed too often."""

    # --- putting ------------------------------------------------------------------------------------------------------

    def put(
        self,
        topic: str,
        data: bytes | bytearray | memoryview,
        *,
        key: str | None = None,
        max_size: int = 0,
        delay_s: float = 0,
        block: bool = True,
        timeout_s: float | None = None,
    ) -> bool:
        """Store a message. Returns True when it is stored, False when its key is known already.

        key: unique over the whole queue; a fresh one by default.
        max_size: how many messages the topic may hold, whatever their state; 0: any number.
        delay_s: seconds until it is made ready.
        block: whether to wait for room, for `timeout_s` seconds at most (None: for ever); no connection is held.
        Raises TopicFull, PayloadTooLarge, ValueError and TypeError for what cannot be, ConfigurationMismatch,
        RedisUnavailable.
        """
        self.require_own_process()
        place, wait_s = _place(max_size, delay_s, block, timeout_s)
        results: list[bool | None] = [None]
        self._put_chunk([self._row(topic, data, key, place)], [0], results, time.monotonic() + wait_s)
        return results[0] is True

    def put_many(
        self,
        items: Iterable[Put | tuple[str, bytes] | tuple[str, bytes, str | None]],
        *,
        max_size: int = 0,
        delay_s: float = 0,
        block: bool = True,
        timeout_s: float | None = None,
    ) -> list[bool]:
        """Store many messages, a hundred a round trip, in order; each is stored or not by itself.

        items: (topic, data) or (topic, data, key). The options are those of `put` and hold for each.
        Returns for each what `put` returns. All are looked at before the first is stored.
        Raises as `put`; the `results` of TopicFull say which are stored all the same.
        """
        self.require_own_process()
        place, wait_s = _place(max_size, delay_s, block, timeout_s)
        rows = [self._row(*Put(*item), place) for item in items]
        results: list[bool | None] = [None] * len(rows)
        deadline = time.monotonic() + wait_s
        for chunk in _chunks(rows):
            self._put_chunk(rows, chunk, results, deadline)
        return [result is True for result in results]

    def _row(
        self, topic: str, data: bytes | bytearray | memoryview, key: str | None, place: tuple[int, int]
    ) -> PutItem:
        return PutItem(
            checked_topic(topic),
            fresh_key() if key is None else checked_key(key),
            1 if key is None else 0,
            checked_data(data, self._options.max_payload_bytes),
            *place,
        )

    def _put_chunk(
        self, rows: Sequence[PutItem], chunk: Sequence[int], results: list[bool | None], deadline: float
    ) -> None:
        """Store rows by their places, waiting for room as long as there is time. Raises TopicFull."""
        left = list(chunk)
        while True:
            left_s = deadline - time.monotonic()
            letters, now_ms = self._store.put([rows[place] for place in left], waiting=left_s > 0)
            for place, letter in zip(left, letters, strict=True):
                if letter != "f":
                    results[place] = letter == "s"
            left = [place for place in left if results[place] is None]
            if not left:
                return
            topic = rows[left[0]].topic
            if left_s <= 0:
                raise TopicFull(
                    f"topic {topic} of {self.name} holds {rows[left[0]].max_size} messages (max_size); try again later",
                    results=results,
                    topic=topic,
                )
            self._room.wait(topic, now_ms, left_s)

    # --- taking -------------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str] | Mapping[str, int], *, prefetch: int = 1) -> Subscription:
        """Return a subscription, to be entered with `with`.

        topics: the most urgent first, or each with a number: the lowest is the most urgent, equals take turns.
        prefetch: how many messages of each topic are held ready beyond those that were handed out; at most 10 000.
        Raises ValueError.
        """
        self.require_own_process()
        return Subscription(
            self._store,
            self._room,
            self._quiet,
            priority_classes(topics),
            checked_count("prefetch", prefetch, least=1, most=MOST_PREFETCH),
        )

    # --- looking ------------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Return the topics that hold messages, or did until a short while ago, sorted."""
        return self._queries.topics(self.name)

    def stats(self) -> QueueStats:
        """Return what stands in each topic, and what was counted."""
        return self._queries.stats(self.name)

    def peek(self, topic: str, n: int = 10) -> list[Stored]:
        """Return up to `n` messages of a topic without taking them: those that wait, in flight, delayed."""
        return self._queries.peek(self.name, checked_topic(topic), checked_count("n", n))

    def get(self, key: str) -> Stored | None:
        """Return the message with a key wherever it stands; None when there is none."""
        return self._queries.get(self.name, checked_key(key))

    def consumers(self) -> list[Consumer]:
        """Return the subscriptions that were seen within a minute."""
        return self._queries.consumers(self.name)

    # --- operating ----------------------------------------------------------------------------------------------------

    def pause(self, topic: str, *, actor: Actor = PROGRAM) -> bool:
        """Let nothing more of a topic be claimed; what was claimed goes on. False: it was paused already."""
        self.require_own_process()
        return self._store.pause(checked_topic(topic), actor)

    def resume(self, topic: str, *, actor: Actor = PROGRAM) -> bool:
        """Let a paused topic go on. Returns False when it was not paused."""
        self.require_own_process()
        return self._store.resume(checked_topic(topic), actor)

    def purge(self, topic: str, *, actor: Actor = PROGRAM) -> int:
        """Remove what waits or is delayed in a topic, a hundred a script; their keys are free. Returns how many.

        What is in flight is left alone, and so is what is put meanwhile.
        """
        self.require_own_process()
        there = self._queries.topic(self.name, checked_topic(topic))
        return self._store.purge(topic, there.waiting + there.delayed, actor)

    def require_own_process(self) -> None:
        """Raise RuntimeError in a forked child: two processes would number their operations alike."""
        if os.getpid() != self._pid:
            raise RuntimeError("this message queue belongs to the parent process; call client.queue(...) in the child")


def _place(max_size: int, delay_s: float, block: bool, timeout_s: float | None) -> tuple[tuple[int, int], float]:
    """Return the bound and the delay in ms as the script takes them, and how long to wait for room, in seconds."""
    checked_count("max_size", max_size)
    delay_ms = milliseconds(checked_seconds("delay_s", delay_s))
    return (max_size, delay_ms), checked_wait(timeout_s) if block else 0.0


def _chunks(rows: Sequence[PutItem]) -> Iterable[list[int]]:
    """Yield places, as many together as one script takes."""
    chunk: list[int] = []
    size = 0
    for place, row in enumerate(rows):
        if chunk and (len(chunk) == ITEMS_A_SCRIPT or size + len(row.data) > BYTES_A_SCRIPT):
            yield chunk
            chunk, size = [], 0
        chunk.append(place)
        size += len(row.data)
    if chunk:
        yield chunk
