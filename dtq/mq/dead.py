"""Dead messages: what could not be read, and what was claimed too often. They stand in a topic of their own."""

from __future__ import annotations

from dtq.model import Actor
from dtq.mq.model import PROGRAM, Stored, TopicStats, checked_count, checked_key, checked_topic
from dtq.mq.queries import MessageQueries
from dtq.mq.store import Store


class DeadMessages:
    """`queue.dead`. Their keys stay known until they are requeued or purged; beyond DTQ_DLQ_MAXLEN the oldest go."""

    def __init__(self, store: Store, queries: MessageQueries) -> None:
        self._store = store
        self._queries = queries
        self._queue = store.options.name
        self._topic = store.options.dead_topic

    def list(self, n: int = 100) -> list[Stored]:
        """Return up to `n` (at most 100) dead messages, the oldest first, with `reason` and `origin`."""
        return self._queries.peek(self._queue, self._topic, checked_count("n", n))

    def requeue(self, key: str, topic: str | None = None, *, actor: Actor = PROGRAM) -> bool:
        """Let a dead message wait again, in the topic that it came from or another one; its deliveries start anew.

        Returns False when no dead message has the key, or a subscription to the dead topic holds it.
        """
        return self._store.requeue(checked_key(key), "" if topic is None else checked_topic(topic), actor)

    def purge(self, *, actor: Actor = PROGRAM) -> int:
        """Remove them all. Returns how many."""
        there: TopicStats = self._queries.topic(self._queue, self._topic)
        return self._store.purge(self._topic, there.waiting, actor)
