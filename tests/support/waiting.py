"""Waiting for a condition instead of sleeping for luck."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = 5.0) -> T:
    """Return the first truthy value of `condition()`; fail the test, naming `what` and the last value, when time is up.

    An AssertionError of the condition counts as "not yet".
    """
    deadline = time.monotonic() + timeout_s
    pause_s = 0.001
    while True:
        late = time.monotonic() >= deadline
        last: object
        try:
            value = condition()
            if value:
                return value
            last = value
        except AssertionError as error:
            last = error
        if late:
            raise AssertionError(f"waited {timeout_s} s for {what}; last value: {last!r}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.05)
