"""Numbers for operations, so that a script that is sent twice, because its reply was lost, gives its first answer.

Each caller that is in the middle of a call has a slot of its own, used by one at a time; the script keeps the last
number and answer of every slot for a minute. So there are as many records as there were callers at once.
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Operation(NamedTuple):
    """One call, as the scripts know it."""

    slot: str
    number: int


class Operations:
    """Gives out operations. Safe to use from any thread; not to be shared with a forked child."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        self._slots = itertools.count()
        self._numbers = itertools.count(1)
        self._free: deque[int] = deque()

    @contextmanager
    def next(self) -> Iterator[Operation]:
        """Hold a slot for one operation, its repeats included."""
        try:
            slot = self._free.pop()
        except IndexError:
            slot = next(self._slots)
        try:
            yield Operation(f"{self._name}-{slot}", next(self._numbers))
        finally:
            self._free.append(slot)
