"""What a subscriber has not taken yet: bounded, and the ends of tasks are the last to be lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from dtq.events.model import Dropped, Event, Gap, Item


class Buffer:
    """Holds events in order. Not safe by itself: its subscription has a lock.

    Two lines, each in order, that are merged when items are taken: so the oldest event that is no end of a task is
    found at once, however full the buffer is.
    """

    def __init__(self, capacity: int) -> None:
        """capacity: how many events and gaps are held."""
        self._capacity = capacity
        self._kept: deque[tuple[int, Event | Gap]] = deque()
        self._loose: deque[tuple[int, Event | Gap]] = deque()
        self._number = 0
        self._dropped = 0

    def __bool__(self) -> bool:
        """Whether there is something to take."""
        return bool(self._kept or self._loose or self._dropped)

    def add(self, items: Iterable[Event | Gap]) -> bool:
        """Add what happened. Returns False when even ends of tasks do not fit: then something is lost that must not."""
        for item in items:
            loose = isinstance(item, Event) and not item.terminal
            if len(self._kept) + len(self._loose) >= self._capacity:
                if not self._loose and not loose:
                    return False
                self._dropped += 1
                if not self._loose:  # it is itself the oldest that may go
                    continue
                self._loose.popleft()
            self._number += 1
            (self._loose if loose else self._kept).append((self._number, item))
        return True

    def take(self, limit: int) -> list[Item]:
        """Return the oldest items, at most `limit`, after a note of what was dropped before them."""
        found: list[Item] = []
        if self._dropped:
            found.append(Dropped(self._dropped))
            self._dropped = 0
        kept, loose = self._kept, self._loose
        while len(found) < limit and (kept or loose):
            line = loose if not kept or (loose and loose[0][0] < kept[0][0]) else kept
            found.append(line.popleft()[1])
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self._loose.clear()
        self._dropped = 0
