"""One subscriber's view of the events: first, if it asked for that, what has been; then what happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from dtq.errors import DtqError
from dtq.events.buffer import Buffer
from dtq.events.history import EventHistory
from dtq.events.model import Event, EventFilter, EventId, Gap, Item

CAPACITY = 1000
TAKE_LIMIT = 200


class SubscriptionEnded(DtqError):
    """Nothing more comes. `reason`: "overflow", the ends of tasks did not fit any more; "closed", by this process."""

    code, http_status = "SUBSCRIPTION_ENDED", 503

    def __init__(self, reason: str) -> None:
        super().__init__(f"the subscription is over ({reason})")
        self.reason = reason


class Replay:
    """What has been since an event, in pages, up to where listening takes over."""

    def __init__(self, history: EventHistory, since: EventId, listen: Callable[[], None]) -> None:
        """listen: begins to listen; called once before the last pages are read, so that nothing falls in between."""
        self.place = since
        """Up to here everything was shown."""
        self.over = False
        self._history = history
        self._listen = listen
        self._listening = False

    def next(self, wanted: EventFilter, limit: int) -> list[Item]:
        """Return what comes next, which may be nothing. Raises RedisUnavailable: call again, nothing is lost."""
        items: list[Item] = []
        while len(items) < limit and not self.over:
            page = self._history.after(self.place, wanted, limit)
            self.place = page.last
            items += [Gap()] if page.gap else []
            items += page.events
            if page.more:
                continue
            if self._listening:
                self.over = True
            else:
                self._listen()
                self._listening = True
        return items


class Subscription:
    """Made by `EventReader.subscribe`. Taken from by one thread; close it, or use it in a `with` statement."""

    def __init__(
        self,
        wanted: EventFilter,
        capacity: int,
        on_ready: Callable[[], None] | None,
        on_close: Callable[[Subscription], None],
    ) -> None:
        self.wanted = wanted
        self._buffer = Buffer(capacity)
        self._on_ready = on_ready
        self._on_close = on_close
        self._changed = threading.Condition()
        self._ended = ""
        self._replay: Replay | None = None
        self._seen: EventId | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- for the subscriber -------------------------------------------------------------------------------------------

    def get(self, timeout_s: float, limit: int = TAKE_LIMIT) -> list[Item]:
        """Return what there is, at most `limit`, waiting for the first item at most `timeout_s` seconds.

        Raises SubscriptionEnded; during a replay also RedisUnavailable: ask again later, nothing is lost by it.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            items = self.take(limit)
            if items:
                return items
            with self._changed:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return []
                self._changed.wait_for(lambda: self._buffer or self._ended, left_s)

    def take(self, limit: int = TAKE_LIMIT) -> list[Item]:
        """Return what there is, at most `limit`, without waiting for more. Raises as `get`."""
        while self._replay is not None:
            items = self._replay.next(self.wanted, limit)
            if self._replay.over:
                self._seen, self._replay = self._replay.place, None
            if items:
                return items
        while True:
            with self._changed:
                if self._ended:
                    raise SubscriptionEnded(self._ended)
                items = self._buffer.take(limit)
            fresh = [item for item in items if self._is_new(item)]
            if fresh or not items:
                return fresh

    def _is_new(self, item: Item) -> bool:
        """Whether the replay has not shown it already: it began to be listened to before the replay was over."""
        return self._seen is None or not isinstance(item, Event) or item.id > self._seen

    def close(self) -> None:
        """Want nothing more. Idempotent."""
        self.end("closed")
        self._on_close(self)

    # --- for the reader -----------------------------------------------------------------------------------------------

    def replay(self, replay: Replay) -> None:
        """Let what is taken begin with this. Called before anybody takes."""
        self._replay = replay

    def offer(self, items: Sequence[Event | Gap]) -> None:
        """Add what is wanted of what happened."""
        wanted = [item for item in items if isinstance(item, Gap) or self.wanted.accepts(item)]
        if not wanted:
            return
        with self._changed:
            if self._ended:
                return
            news = not self._buffer
            if not self._buffer.add(wanted):
                self._buffer.clear()
                self._ended = "overflow"
            self._changed.notify_all()
        if self._on_ready is not None and (news or self._ended):
            self._on_ready()

    def end(self, reason: str) -> None:
        """Let the subscriber know that nothing more comes."""
        with self._changed:
            if self._ended:
                return
            self._ended = reason
            self._buffer.clear()
            self._changed.notify_all()
        if self._on_ready is not None:
            self._on_ready()
