"""What a subscription holds: messages that nobody was handed yet, by urgency; those handed out; those done but not yet
written down. No I/O; every method is safe to call from any thread and returns at once.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, TypeAlias

from dtq.mq.message import Message

_ID = tuple[str, str]
Demand: TypeAlias = Literal["low", "some", "none"]


class Holdings:
    """All messages that one subscription owns, as far as it knows."""

    def __init__(self, classes: Sequence[Sequence[str]], prefetch: int) -> None:
        """classes: the topics by urgency. prefetch: how many of each are kept ready."""
        self._classes = [list(topics) for topics in classes]
        self._rank = {topic: number for number, topics in enumerate(classes) for topic in topics}
        self._prefetch = prefetch
        self._lock = threading.Lock()
        self._ready: list[tuple[int, int, Message]] = []
        self._arrivals = itertools.count()
        self._buffered = dict.fromkeys(self._rank, 0)
        self._undelivered = 0
        self._refused = 0
        self._closed = False
        self._held: dict[_ID, Message] = {}
        self._later: deque[Message] = deque()
        self.tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        """At least one for each message that is ready: receivers wait for these. Safe in signal handlers."""

    # --- the reader's side --------------------------------------------------------------------------------------------

    def add(self, messages: Iterable[Message], until: float) -> None:
        """Take what was claimed. What is held already was renewed too late, and is this consumer's again: not twice.

        until: time.monotonic() at which these claims end.
        """
        added = 0
        with self._lock:
            for message in messages:
                held = self._held.get(message.id)
                (held or message).until = until
                if held or self._closed:
                    continue
                self._held[message.id] = message
                heapq.heappush(self._ready, (self._rank[message.topic], next(self._arrivals), message))
                self._buffered[message.topic] += 1
                self._undelivered += 1
                added += 1
        self._put_tokens(added)

    def rooms(self, left: Collection[str]) -> list[tuple[str, int, int]]:
        """Return topics that have room, how much, and their class; the most urgent first, those of a class take turns.

        left: topics in which there may be more. While one of them is kept ready in full, less urgent ones have to wait:
        what is taken of them now could be handed out before it.
        """
        with self._lock:
            for topics in self._classes:
                topics.append(topics.pop(0))
            last = self._last_class(left)
            return [
                (topic, self._prefetch - self._buffered[topic], number)
                for number, topics in enumerate(self._classes[: last + 1])
                for topic in topics
                if self._buffered[topic] < self._prefetch
            ]

    def demand(self, left: Collection[str]) -> Demand:
        """Return how much a claim is wanted, by the same rules: "low" when half of what is kept ready is used up."""
        with self._lock:
            last = self._last_class(left)
            least = min((self._buffered[topic] for topic in left if self._rank[topic] <= last), default=self._prefetch)
        if least <= self._prefetch // 2:
            return "low"
        return "some" if least < self._prefetch else "none"

    def _last_class(self, left: Collection[str]) -> int:
        full = [self._rank[topic] for topic in left if self._buffered[topic] >= self._prefetch]
        return min(full, default=len(self._classes) - 1)

    @property
    def empty(self) -> bool:
        """Whether nothing is ready."""
        return self._undelivered == 0

    @property
    def outranked(self) -> bool:
        """Whether a topic that is more urgent than all that is ready has room."""
        with self._lock:
            rank = min((self._rank[topic] for topic, number in self._buffered.items() if number), default=0)
            return rank > 0

    def withdraw(self) -> list[Message]:
        """Return what nobody was handed; nobody will be, from now on."""
        with self._lock:
            self._closed = True
            messages = [message for _, _, message in self._ready if not message.lost]
            self._ready.clear()
            for message in messages:
                self._unbuffer(message)
                del self._held[message.id]
            return messages

    # --- the receivers' side ------------------------------------------------------------------------------------------

    def take(self) -> Message | None:
        """Return the most urgent message that is ready, now handed out; None when there is none.

        None, too, when its claim may have ended: somebody else may be at work on it, even done. Whoever asked is told
        again when it is known to be this consumer's; `doubtful` says so until then.
        """
        with self._lock:
            while self._ready:
                message = self._ready[0][2]
                if not message.lost:
                    if message.until <= time.monotonic():
                        self._refused += 1
                        return None
                    heapq.heappop(self._ready)
                    self._unbuffer(message)
                    message.handed_out = True
                    return message
                heapq.heappop(self._ready)
            return None

    @property
    def doubtful(self) -> bool:
        """Whether somebody was refused a message that has to be renewed first."""
        return self._refused > 0

    def forget(self, message: Message) -> None:
        """Hold a message no longer: it is settled, or lost."""
        with self._lock:
            if self._held.get(message.id) is message:
                del self._held[message.id]

    def finish_later(self, message: Message) -> None:
        """Note that a message is done; it stays held until that is written."""
        with self._lock:
            self._later.append(message)

    # --- the renewer's side -------------------------------------------------------------------------------------------

    @property
    def left_to_write(self) -> int:
        """How many are done and not written."""
        return len(self._later)

    def done(self, limit: int) -> list[Message]:
        """Return up to `limit` messages that are done and wait to be written; they stay until `written`."""
        with self._lock:
            return list(itertools.islice(self._later, limit))

    def written(self, number: int) -> None:
        """Forget the first `number` of those."""
        with self._lock:
            for _ in range(number):
                message = self._later.popleft()
                if self._held.get(message.id) is message:
                    del self._held[message.id]

    def held(self) -> list[Message]:
        """Return all that is held."""
        with self._lock:
            return list(self._held.values())

    def renewed(self, messages: Iterable[Message], until: float) -> None:
        """These claims end at `until` (time.monotonic()); the others that were held are lost already."""
        with self._lock:
            for message in messages:
                message.until = until
            refused, self._refused = self._refused, 0
        self._put_tokens(refused)

    def lose(self, message: Message) -> None:
        """A message is not this consumer's any more: mark it, hold it no longer, hand it to nobody.

        One that is not held was settled in the meantime, and is not lost.
        """
        with self._lock:
            if self._held.get(message.id) is message:
                message.lost = True
                del self._held[message.id]
                if not message.handed_out:
                    self._unbuffer(message)

    def _put_tokens(self, number: int) -> None:
        for _ in range(number):
            self.tokens.put(None)

    def _unbuffer(self, message: Message) -> None:
        self._buffered[message.topic] -= 1
        self._undelivered -= 1
