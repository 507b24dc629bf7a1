"""Keeps open pages up to date: one thread and one reader of events a process, however many tabs are open.

A page that several tabs show is drawn once for all of them, twice a second at most, and only when something happened
that it shows; what is drawn goes to a tab only where it differs from what the tab has. A tab that is slow to read gets
the newest state of each part, never a queue of old ones.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from dtq.errors import DtqError, RedisUnavailable
from dtq.events import Event, SubscriptionEnded
from dtq.strictjson import dump_json
from dtq.web.dashboard.drawing import Drawing, Screen

log = logging.getLogger(__name__)

SHORTEST_ROUND_S = 0.45
"""Between two rounds: twice a second, with a little for the drawing itself."""
IDLE_SHARE = 3
"""A round that took long is followed by a rest this many times as long: drawing never takes more of a core."""
LONGEST_ROUND_S = 5.0
"""What changes without an event, such as a heartbeat, is looked at this often at least, and every tab hears that all is
well; a page may want it sooner (`every_s`)."""
LINGER_S = 5.0
"""The thread ends this long after the last tab."""
NOTE_EVERY_S = 15.0
MOST_TOUCHED = 5_000
EVENTS_HELD = 5_000


class Touched:
    """What happened since the last round."""

    def __init__(self) -> None:
        self.all = False
        self.any = False
        self.tasks: set[str] = set()
        self.queues: set[str] = set()

    def add(self, items: Iterable[object]) -> None:
        """Note events; whatever says that some are missing touches everything."""
        for item in items:
            self.any = True
            if not isinstance(item, Event) or len(self.tasks) >= MOST_TOUCHED:
                self.all = True
                continue
            if item.task_id:
                self.tasks.add(item.task_id)
            if item.queue:
                self.queues.add(item.queue)

    def concerns(self, screen: Screen) -> bool:
        """Whether what the screen shows may have changed."""
        if self.all or not (screen.task_id or screen.queue):
            return self.all or self.any
        return screen.task_id in self.tasks if screen.task_id else screen.queue in self.queues


class Tab:
    """One open page. Offered to by the hub's thread, taken from by the thread of its socket."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """wake: is called, from the hub's thread, when there is something to take."""
        self._wake = wake
        self._lock = threading.Lock()
        self._screen: Screen | None = None
        self._had: dict[str, bytes] = {}
        self._waiting: dict[str, str] = {}
        self._beat: dict[str, object] | None = None

    @property
    def screen(self) -> Screen | None:
        """What it shows; None before it has said."""
        with self._lock:
            return self._screen

    @property
    def bare(self) -> bool:
        """Whether it has nothing yet of what it shows."""
        with self._lock:
            return self._screen is not None and not self._had

    def show(self, screen: Screen) -> None:
        """It shows something else now, or asks for all of it again."""
        with self._lock:
            self._screen, self._had, self._waiting = screen, {}, {}

    def offer(self, screen: Screen, fragments: Mapping[str, str], beat: dict[str, object]) -> None:
        """Give it what was drawn for a screen, unless it has gone on to another one, and the news of the round."""
        with self._lock:
            if screen != self._screen:
                return
            for target, html in fragments.items():
                digest = hashlib.blake2b(html.encode(), digest_size=16).digest()
                if self._had.get(target) != digest:
                    self._had[target] = digest
                    self._waiting[target] = html
            self._beat = beat
        self._wake()

    def take(self) -> bytes | None:
        """Return a frame with what is new; None when nothing is."""
        with self._lock:
            if self._beat is None:
                return None
            frame = dict(self._beat)
            if self._waiting:
                frame["content"] = "".join(self._waiting.values())
            self._waiting, self._beat = {}, None
        return dump_json(frame)


class Hub:
    """Draws what the tabs of this process show. Safe to use from any thread."""

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self._tabs: set[Tab] = set()
        self._lock = threading.Lock()
        self._ring = threading.Event()
        self._thread: threading.Thread | None = None
        self.rounds = 0
        """How often something was drawn."""

    def open(self, tab: Tab) -> None:
        """Keep a tab up to date until it is closed."""
        with self._lock:
            self._tabs.add(tab)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)
                self._thread.start()

    def close(self, tab: Tab) -> None:
        """Forget a tab."""
        with self._lock:
            self._tabs.discard(tab)

    def ring(self) -> None:
        """Let the next round come soon: a tab shows something new."""
        self._ring.set()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        empty_since = time.monotonic()
        while True:
            with self._lock:
                if self._tabs:
                    empty_since = time.monotonic()
                elif self._drawing.stopping.is_set() or time.monotonic() - empty_since > LINGER_S:
                    self._thread = None
                    return
            try:
                self._follow()
            except SubscriptionEnded:
                pass  # too much happened at once, or the process ends: begin again with everything
            except RedisUnavailable as error:
                self._tell_all({"away": error.message})
                self._drawing.stopping.wait(1.0)
            except Exception:  # the next round may go well
                log.exception("the open pages could not be drawn")
                self._drawing.stopping.wait(1.0)

    def _follow(self) -> None:
        """Draw as long as there are tabs. Raises SubscriptionEnded, RedisUnavailable."""
        touched = Touched()
        due_at: dict[Screen, float] = {}
        note_at = 0.0
        with self._drawing.events(self._ring.set, EVENTS_HELD) as events:
            while not self._drawing.stopping.is_set():
                with self._lock:
                    tabs = list(self._tabs)
                if not tabs:
                    self._ring.wait(LINGER_S)
                    return
                while items := events.take():
                    touched.add(items)
                began = time.monotonic()
                if began >= note_at:
                    self._drawing.note_gauges()
                    note_at = began + NOTE_EVERY_S
                screens = self._due(tabs, touched, due_at)
                if screens:
                    self._draw(screens, touched)
                    self.rounds += 1
                touched, now = Touched(), time.monotonic()
                due_at = {tab.screen: due_at.get(tab.screen, 0.0) for tab in tabs if tab.screen is not None}
                due_at |= {screen: now + min(screen.page.every_s, LONGEST_ROUND_S) for screen in screens}
                self._rest(max(SHORTEST_ROUND_S, IDLE_SHARE * (now - began)), min(due_at.values(), default=now + 1))

    def _rest(self, least_s: float, until: float) -> None:
        """Wait for the least time, then for something to happen, or until it is time to look at everything."""
        self._drawing.stopping.wait(least_s)
        self._ring.wait(max(0.0, until - time.monotonic()))
        self._ring.clear()

    def _due(self, tabs: Iterable[Tab], touched: Touched, due_at: Mapping[Screen, float]) -> dict[Screen, list[Tab]]:
        """Return what is to be drawn now, each with the tabs that show it."""
        now = time.monotonic()
        screens: dict[Screen, list[Tab]] = {}
        for tab in tabs:
            if tab.screen is not None:
                screens.setdefault(tab.screen, []).append(tab)
        return {
            screen: watching
            for screen, watching in screens.items()
            if touched.concerns(screen) or now >= due_at.get(screen, 0.0) or any(tab.bare for tab in watching)
        }

    def _draw(self, screens: Mapping[Screen, list[Tab]], touched: Touched) -> None:
        """Draw screens, each once, and offer what was drawn to its tabs."""
        look = self._drawing.look()
        for screen, watching in screens.items():
            fragments: Mapping[str, str] = {}
            quiet = not touched.concerns(screen)
            rows = None if quiet or touched.all or any(tab.bare for tab in watching) else touched.tasks
            try:
                fragments = self._drawing.draw(screen, look, rows)
            except RedisUnavailable:
                raise
            except DtqError:  # what it shows is gone: it stays as it was
                pass
            for tab in watching:
                tab.offer(screen, fragments, {"at": round(look.now, 3)})

    def _tell_all(self, beat: dict[str, object]) -> None:
        with self._lock:
            tabs = list(self._tabs)
        for tab in tabs:
            screen = tab.screen
            if screen is not None:
                tab.offer(screen, {}, beat)
