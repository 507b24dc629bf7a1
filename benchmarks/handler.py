"""What every system runs for a task, and the payload of about 200 bytes that it gets."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.record import mark

NAP_S = 0.02
FREE = "BENCH_FREE"
"""The variable that names a file: tasks of the kind "stuck" do not end until it is there."""

_TEXT = "Hello, your order 48151623 has shipped and will arrive on Friday. Follow it online."


def payload(number: int, kind: str = "noop") -> dict[str, Any]:
    """Return a payload. kind: noop, nap (sleeps 20 ms) or stuck."""
    return {
        "number": number,
        "kind": kind,
        "sent": time.monotonic_ns(),
        "to": f"user{number:08d}@example.com",
        "template": "shipped",
        "text": _TEXT,
    }


def handle(payload: dict[str, Any]) -> None:
    """Run a task."""
    mark(payload["sent"])
    kind = payload["kind"]
    if kind == "nap":
        time.sleep(NAP_S)
    elif kind == "stuck":
        give_up_at = time.monotonic() + 900
        while not os.path.exists(os.environ[FREE]) and time.monotonic() < give_up_at:
            time.sleep(0.05)
