"""W3C trace context (https://www.w3.org/TR/trace-context/), carried from a request to the handler.

dtq reads nothing out of it: who called stands in `traceparent`, and a handler, its log and what it calls can tell of
the same trace. `dtq.tracing` makes spans of it where OpenTelemetry is in use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE = re.compile(r"[\x20-\x7e]{1,512}")


class TraceContext(NamedTuple):
    """Where in which trace somebody is."""

    parent: str
    """A `traceparent` of version 00."""
    state: str = ""
    """The `tracestate` beside it, which belongs to those who write it."""

    @property
    def trace_id(self) -> str:
        """32 hex digits that all parts of a trace share."""
        return self.parent[3:35]

    def as_json(self) -> dict[str, str]:
        """Return what is kept with a task."""
        return {"traceparent": self.parent, **({"tracestate": self.state} if self.state else {})}


def read(parent: str | None, state: str | None = None) -> TraceContext | None:
    """Return the context that two headers tell. A `traceparent` that is none is as good as none: a trace ends there."""
    found = _PARENT.fullmatch(parent.strip()) if parent else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not (trace_id.strip("0") and span_id.strip("0")):
        return None
    kept = state.strip() if state else ""
    return TraceContext(f"00-{trace_id}-{span_id}-{flags}", kept if _STATE.fullmatch(kept) else "")


def from_json(kept: Mapping[str, Any]) -> TraceContext | None:
    """Return the context that was kept with a task, or None."""
    parent, state = kept.get("traceparent"), kept.get("tracestate")
    return read(parent, state if isinstance(state, str) else None) if isinstance(parent, str) else None


_carried: ContextVar[TraceContext | None] = ContextVar("dtq_trace", default=None)


def carried() -> TraceContext | None:
    """Return the context of what runs here now: a request, or a handler. Tasks that are submitted belong to it."""
    return _carried.get()


@contextmanager
def carrying(context: TraceContext | None) -> Iterator[None]:
    """Let what runs inside belong to a context."""
    token = _carried.set(context)
    try:
        yield
    finally:
        _carried.reset(token)
