"""Acknowledgements of many threads at once: those that come while one is being written go out together in the next
script. Each thread still waits for the answer to its own; one thread alone writes at once.
"""

from __future__ import annotations

import threading
from collections import deque

from dtq.errors import RedisFull, RedisUnavailable
from dtq.mq.operations import Operation
from dtq.mq.store import ITEMS_A_SCRIPT, Store


class _Batch:
    """What one script is asked, the same whenever it is asked again."""

    __slots__ = ("answer", "failure", "items", "operation")

    def __init__(self, items: list[tuple[str, str, str]], operation: Operation) -> None:
        self.items = items
        self.operation = operation
        self.answer: list[bool] | None = None
        self.failure: RedisUnavailable | RedisFull | None = None
        """Why the answer is not known, after the last time."""


class Acknowledgement:
    """One message that is to be removed; after an error the same object is given to `write` again."""

    __slots__ = ("batch", "item", "place")

    def __init__(self, item: tuple[str, str, str]) -> None:
        """item: topic, entry, key."""
        self.item = item
        self.batch: _Batch | None = None
        self.place = 0
        """Its number in the batch."""


class Acknowledger:
    """Writes the acknowledgements of one consumer. Safe to use from any thread."""

    def __init__(self, store: Store, consumer: str) -> None:
        self._store = store
        self._consumer = consumer
        self._waiting: deque[Acknowledgement] = deque()
        self._writing = threading.RLock()  # a signal handler may acknowledge, too

    def write(self, one: Acknowledgement) -> bool:
        """Remove a message for good. Returns whether it was still the consumer's.

        Waits for at most one script before its own, or a few where hundreds of threads write. Raises RedisUnavailable,
        RedisFull: the same object may be written again, and gets the answer that was lost.
        """
        asked = one.batch
        if asked is None:
            self._waiting.append(one)
        with self._writing:
            while (batch := one.batch) is None:
                self._send(self._gather(one))
            if batch.answer is None:
                if batch.failure is not None and asked is None:  # of the thread that wrote it for this one
                    raise type(batch.failure)(batch.failure.message, **batch.failure.context)
                self._send(batch)
            assert batch.answer is not None
            return batch.answer[one.place]

    def _gather(self, own: Acknowledgement) -> _Batch:
        """Make a batch of those that wait."""
        found: list[Acknowledgement] = []
        while self._waiting and len(found) < ITEMS_A_SCRIPT:
            found.append(self._waiting.popleft())
        if not found:  # a thread that was interrupted, by a task's timeout, had taken it and done nothing
            found.append(own)
        batch = _Batch([one.item for one in found], self._store.operations.take())
        for place, one in enumerate(found):
            one.place, one.batch = place, batch
        return batch

    def _send(self, batch: _Batch) -> None:
        try:
            batch.answer = self._store.acknowledge(self._consumer, batch.items, batch.operation)
        except (RedisUnavailable, RedisFull) as failure:
            batch.failure = failure
            raise
        self._store.operations.give_back(batch.operation)
