"""Errors that are one error: their messages without what differs from task to task."""

from __future__ import annotations

import re
from functools import lru_cache

_VARIES = re.compile(
    r"""0x[0-9a-fA-F]+                                              # addresses
    | \b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b      # UUIDs
    | \b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{12,}\b                     # long ids
    | '[^']{0,200}' | "[^"]{0,200}"                                 # what is quoted
    | \d+(?:[.,:]\d+)*                                              # numbers, times, versions
    """,
    re.VERBOSE,
)
GAP = "…"
MAX_CHARS = 160


@lru_cache(maxsize=10_000)
def signature(error_class: str, message: str) -> str:
    """Return what an error has in common with others of its kind: class and message, gaps where they differ."""
    first_line = message.strip().partition("\n")[0][: 4 * MAX_CHARS]
    pattern = _VARIES.sub(GAP, first_line)
    return f"{error_class}: {pattern[:MAX_CHARS]}" if pattern else error_class


def common_text(found: str, error_class: str) -> str:
    """Return the longest piece of a signature's message that all of its errors have: what a filter can look for."""
    message = found.removeprefix(error_class).removeprefix(": ")
    return max((piece.strip(" '\"") for piece in message.split(GAP)), key=len, default="")
