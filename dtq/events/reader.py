"""The one reader of a process: a thread that waits for events on a connection of its own, and hands them out."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dtq.backoff import Backoff
from dtq.errors import DtqError
from dtq.events.history import EventHistory
from dtq.events.model import Event, EventFilter, EventId, Gap, event_of, lines_of
from dtq.events.subscription import CAPACITY, Replay, Subscription, SubscriptionEnded
from dtq.keys import Keys
from dtq.redisio import BlockingCaller, Interrupted, Server
from dtq.settings import Settings

log = logging.getLogger(__name__)

BLOCK_S = 5.0
"""How long one read waits; after an idle one, the reader looks whether the stream is still the one it knows."""
ENTRIES_A_READ = 200
LINGER_S = 5.0
"""How long the reader stays when nobody listens: who comes back soon finds it."""
STOP_LIMIT_S = 2.0
_PAUSE = Backoff(base_s=0.05, max_s=1.0, jitter=0.2)


class EventReader:
    """Hands events out to subscribers. Safe to use from any thread. See the package's docstring."""

    def __init__(self, server: Server, settings: Settings) -> None:
        """Nothing is connected or started before somebody subscribes."""
        self.history = EventHistory(server, settings)
        self._server = server
        self._key = Keys(settings.namespace).events()
        self._starting = threading.Lock()
        self._lock = threading.Lock()
        self._any_task: set[Subscription] = set()
        self._by_task: dict[str, set[Subscription]] = {}
        self._run: _Run | None = None
        self._closed = False

    def subscribe(
        self,
        wanted: EventFilter | None = None,
        *,
        since: EventId | None = None,
        capacity: int = CAPACITY,
        on_ready: Callable[[], None] | None = None,
    ) -> Subscription:
        """Return a subscription that misses nothing from now on.

        since: begin with what came after this event. capacity, on_ready: see the package.
        Raises RedisUnavailable when the reader would have to be started and Redis is away, SubscriptionEnded when the
        reader was closed.
        """
        wanted = wanted or EventFilter()
        made = Subscription(wanted, capacity, on_ready, self._leave)
        if since is None:
            self._join(made)
        else:
            made.replay(Replay(self.history, since, lambda: self._join(made)))
        return made

    def close(self) -> None:
        """End the subscriptions and the thread, for good."""
        with self._lock:
            self._closed = True
            run, self._run = self._run, None
            listeners = self._listeners()
            self._any_task.clear()
            self._by_task.clear()
        for one in listeners:
            one.end("closed")
        if run is not None:
            run.stop()

    # --- who listens --------------------------------------------------------------------------------------------------

    def _join(self, subscription: Subscription) -> None:
        task_id = subscription.wanted.task_id
        while True:
            with self._lock:
                if self._closed:
                    raise SubscriptionEnded("closed")
                if self._run is not None and self._run.alive:
                    group = self._any_task if task_id is None else self._by_task.setdefault(task_id, set())
                    group.add(subscription)
                    return
            self._start()

    def _start(self) -> None:
        """Start the thread where the stream ends now: asked here, so that an absent Redis is an error at once."""
        with self._starting:
            with self._lock:
                if self._run is not None and self._run.alive:
                    return
            run = _Run(self, self._server.blocking(), self._key, self.history.end())
            with self._lock:
                if self._closed:
                    raise SubscriptionEnded("closed")
                self._run = run
                run.start()

    def _leave(self, subscription: Subscription) -> None:
        task_id = subscription.wanted.task_id
        with self._lock:
            self._any_task.discard(subscription)
            if task_id is not None and task_id in self._by_task:
                self._by_task[task_id].discard(subscription)
                if not self._by_task[task_id]:
                    del self._by_task[task_id]

    def _listeners(self) -> list[Subscription]:
        return [*self._any_task, *(one for group in self._by_task.values() for one in group)]

    def retire(self, run: _Run) -> bool:
        """Whether the thread may end: nobody listens, and who comes from now on starts another one."""
        with self._lock:
            if self._any_task or self._by_task:
                return False
            if self._run is run:
                self._run = None
            return True

    @property
    def idle(self) -> bool:
        """Whether nobody listens."""
        return not (self._any_task or self._by_task)

    # --- handing out --------------------------------------------------------------------------------------------------

    def hand_out(self, entries: Iterable[Sequence[Any]]) -> None:
        """Give the events of some entries to those who want them. What nobody can want is not even made."""
        events: list[Event] = []
        watched: list[tuple[Subscription, Event]] = []
        with self._lock:
            everybody = tuple(self._any_task)
            for place, parts in (line for entry in entries for line in lines_of(entry)):
                watchers = self._by_task.get(parts[1], ())
                if everybody or watchers:
                    event = event_of(place, parts)
                    events.append(event)
                    watched += [(watcher, event) for watcher in watchers]
        for watcher, event in watched:
            watcher.offer((event,))
        for one in everybody:
            one.offer(events)

    def tell_gap(self) -> None:
        """Let everybody know that events were missed."""
        with self._lock:
            everybody = self._listeners()
        log.warning("some events were missed: those who listen are told", extra={"listeners": len(everybody)})
        for one in everybody:
            one.offer([Gap()])


class _Run:
    """One life of the thread: where it is in the stream, and how Redis has been to it."""

    def __init__(self, reader: EventReader, caller: BlockingCaller, key: str, place: EventId) -> None:
        self._reader = reader
        self._caller = caller
        self._key = key
        self._place = place
        self._doubt = False  # whether the stream may not be the one that was read before
        self._failures = 0
        self._away_since = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="dtq-events", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether it reads; False also in a child of a fork."""
        return self._thread.is_alive() and not self._stopping.is_set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Idempotent."""
        self._stopping.set()
        self._caller.close()
        if self._thread is not threading.current_thread():
            self._thread.join(STOP_LIMIT_S)

    def _loop(self) -> None:
        idle_since: float | None = None
        while not self._stopping.is_set():
            try:
                self._step(min(1.0, BLOCK_S) if self._reader.idle else BLOCK_S)
            except Interrupted:
                break
            except DtqError as error:
                self._failed(error)
            except Exception:
                log.exception("reading events failed")
                self._failed(None)
            if not self._reader.idle:
                idle_since = None
            elif idle_since is None:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since >= LINGER_S and self._reader.retire(self):
                break
        self._caller.close()

    def _step(self, block_s: float) -> None:
        """Read once and hand out what came."""
        if self._doubt:
            self._look_again()
        reply = self._caller.call(
            *("XREAD", "COUNT", ENTRIES_A_READ, "BLOCK", round(block_s * 1000)),
            *("STREAMS", self._key, self._place.entry),
            block_s=block_s,
        )
        self._recovered()
        entries = reply[0][1] if reply else []
        if len(entries) == ENTRIES_A_READ:  # behind: was it trimmed before it was read?
            self._look_again()
        self._doubt = not entries  # idle: is it still the stream that was read?
        if entries:
            self._place = EventId.parse(entries[-1][0].decode())
            self._reader.hand_out(entries)

    def _look_again(self) -> None:
        """Find out whether events were missed, and where to go on when the stream is not the one that it was."""
        if self._place.is_start:
            held, end = not self._reader.history.trimmed(), self._place
        else:
            held, end = self._reader.history.holds(self._place)
        self._doubt = False
        if not held:
            self._place = min(self._place, end)  # an emptied stream may begin again at lower ids: clocks go back
            self._reader.tell_gap()

    def _failed(self, error: DtqError | None) -> None:
        self._failures += 1
        self._doubt = True
        if self._failures == 1:
            self._away_since = time.monotonic()
            if error is not None:
                log.warning("events cannot be read, tried again until they can: %s", error)
        self._stopping.wait(_PAUSE.delay_s(self._failures, random.random))

    def _recovered(self) -> None:
        if self._failures:
            log.info("events are read again after %.1f s", time.monotonic() - self._away_since)
            self._failures = 0
