"""The message queues of one client: they share scripts and connections."""

from __future__ import annotations

import os

from dtq.keys import Keys
from dtq.mq.model import QueueOptions
from dtq.mq.queries import MessageQueries
from dtq.mq.queue import MessageQueue
from dtq.mq.store import Store, mq_limits
from dtq.redisio import Server
from dtq.scripts import Scripts
from dtq.settings import Settings

MOST_KEPT = 256


class Messages:
    """`client.messages`: what is there, and queues for who only puts and operates. Safe to use from any thread."""

    def __init__(self, server: Server, settings: Settings) -> None:
        """server: connected; nothing is sent yet."""
        self._server = server
        self._keys = Keys(settings.namespace)
        self._scripts = Scripts(server, self._keys, mq_limits(settings))
        self.queries = MessageQueries(server, settings, self._scripts)
        self._kept: dict[str, MessageQueue] = {}
        self._pid = os.getpid()

    def queue(self, options: QueueOptions) -> MessageQueue:
        """Return a queue as its user wants it."""
        return MessageQueue(Store(self._server, self._keys, self._scripts, options), self.queries)

    def any(self, name: str) -> MessageQueue:
        """Return a queue for putting and operating, whatever visibility timeout it has. Raises ValueError."""
        if os.getpid() != self._pid:  # a forked child must not number its operations like its parent
            self._kept, self._pid = {}, os.getpid()
        found = self._kept.get(name)
        if found is None:
            if len(self._kept) >= MOST_KEPT:
                self._kept = {}
            # The first of two threads wins: each queue keeps records of operations in Redis under a name of its own.
            found = self._kept.setdefault(name, self.queue(QueueOptions(name=name, any_visibility=True)))
        return found
