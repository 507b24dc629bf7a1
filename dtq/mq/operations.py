"""Numbers for operations, so that a script that is sent twice, because its reply was lost, gives its first answer.

Each caller that is in the middle of a call has a slot of its own, used by one at a time; the script keeps the last
number and answer of every slot for a minute. So there are as many records as there were callers at once.
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
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
        self._free: deque[str] = deque()

    def take(self) -> Operation:
        """Return a new operation with a slot of its own until `give_back`; without that it just is not used again."""
        try:
            slot = self._free.pop()
        except IndexError:
            slot = f"{self._name}-{next(self._slots)}"
        return Operation(slot, next(self._numbers))

    def give_back(self, operation: Operation) -> None:
        """Let another operation have the slot: this one was answered, or is not asked again."""
        self._free.append(operation.slot)
