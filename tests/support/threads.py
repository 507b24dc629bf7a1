"""Running a call in a thread and looking at what became of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_thread(call: Callable[..., Any], *args: Any, **options: Any) -> tuple[threading.Thread, list[Any]]:
    """Start a call in a thread; the list gets its result, or its exception."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call(*args, **options))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome
