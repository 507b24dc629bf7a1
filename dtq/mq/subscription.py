"""A subscription as a program uses it: enter, receive, leave."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from dtq.errors import SubscriptionClosed
from dtq.mq.message import Message
from dtq.mq.model import checked_wait
from dtq.mq.reader import Reader
from dtq.mq.renewer import Renewer
from dtq.mq.room import Room
from dtq.mq.session import Session
from dtq.mq.store import Store
from dtq.serverinfo import QuietTime

_SLICE_S = 1.0
"""How long a receiver sleeps at most before it looks whether the subscription was closed."""


class Subscription:
    """Takes messages of some topics; between entering and leaving it owns two threads and one blocking connection.

        with queue.subscribe(["urgent", "usual"]) as subscription:
            for message in subscription:  # ends after `subscription.close()`
                with message:
                    handle(message.data)

    Leaving hands back at once what was not settled. May be entered again after that.
    """

    def __init__(
        self, store: Store, room: Room, quiet: QuietTime, classes: Sequence[Sequence[str]], prefetch: int
    ) -> None:
        """Use `MessageQueue.subscribe`."""
        self._store = store
        self._room = room
        self._quiet = quiet
        self._classes = classes
        self._prefetch = prefetch
        self._session: Session | None = None
        self._threads: tuple[Reader, Renewer] | None = None

    def __enter__(self) -> Self:
        if self._session is not None:
            raise RuntimeError("this subscription is entered already; make one for each `with`")
        session = Session(self._store, self._room, self._classes, self._prefetch)
        session.come()
        self._session = session
        self._threads = (Reader(session, self._quiet), Renewer(session))
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # no room for another thread: the one that runs must not take messages for nobody
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, threads = self._session, self._threads
        if session is None or threads is None or session.foreign:  # a forked child has nothing to hand back
            return
        reader, renewer = threads
        self.close()
        session.stop.set()
        reader.join()  # intake first
        renewer.join()  # renewals until nothing new can come
        session.hand_back()
        self._session = self._threads = None

    def receive(self, timeout_s: float | None = None) -> Message:
        """Return the next message; each goes to one of the threads that ask.

        timeout_s: how long to wait; None: until one comes.
        Raises TimeoutError, SubscriptionClosed, ConfigurationMismatch when somebody made the queue anew with another
        visibility timeout. While Redis is away this waits.
        """
        deadline = time.monotonic() + checked_wait(timeout_s)
        while True:
            session = self._open_session()
            left_s = deadline - time.monotonic()
            message = session.receive(max(0.0, min(left_s, _SLICE_S)))
            if message is not None:
                return message
            if session.failure is not None:
                raise session.failure
            if left_s <= 0 and not session.closing:
                raise TimeoutError(f"no message came within {timeout_s:g} s")

    def __iter__(self) -> Iterator[Message]:
        self._entered()
        return self

    def __next__(self) -> Message:
        try:
            return self.receive()
        except SubscriptionClosed:
            raise StopIteration from None

    def acknowledge_later(self, message: Message) -> None:
        """Remove a message for good, soon: written together with others, and tried again until it is written.

        A process that dies before that leaves it to be delivered again. `flush` waits for the writing.
        """
        self._entered()
        message.acknowledge_later()

    def flush(self) -> None:
        """Write down everything that is to be acknowledged later. Raises RedisUnavailable: it is tried again."""
        session = self._entered()
        session.require_own_process()
        session.flush()

    def close(self) -> None:
        """End iteration, let `receive` raise SubscriptionClosed. From any thread or signal handler; idempotent.

        What is in hand is settled as before; the rest is handed back on leaving.
        """
        session = self._session
        if session is not None:
            session.closing = True
            session.holdings.tokens.put(None)
            session.nudges.put(None)

    def _entered(self) -> Session:
        session = self._session
        if session is None:
            raise SubscriptionClosed("the subscription is not entered: use it in a `with` statement")
        return session

    def _open_session(self) -> Session:
        session = self._entered()
        session.require_own_process()
        if session.closing:
            raise SubscriptionClosed("the subscription was closed")
        return session
