"""Spans of OpenTelemetry, where the process uses it (the extra `dtq[otel]`): one for sending, one for each run.

dtq imports nothing of it. Who uses OpenTelemetry has imported it and set up a tracer provider, in the module of the
tasks or by `opentelemetry-instrument`; a process that has not pays one look into a dict for each task.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from dtq import trace
from dtq.model import Claim, Outcome
from dtq.trace import TraceContext

if TYPE_CHECKING:
    from dtq.submission import Submission

_API = "opentelemetry.trace"


class Tracer(Protocol):
    """What is used of a tracer."""

    def start_span(self, name: str, context: Any = None, kind: Any = None, attributes: Any = None) -> Any:
        """Return a new span."""


class RunSpan:
    """The span of one run of a handler. Begun and ended by the thread that runs it."""

    def __init__(self, claim: Claim, tracer: Tracer, parent: TraceContext | None) -> None:
        api = sys.modules[_API]
        self._span = tracer.start_span(
            f"process {claim.task_type}",
            context=_extract(parent),
            kind=api.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "dtq",
                "messaging.operation.type": "process",
                "messaging.destination.name": claim.queue,
                "messaging.message.id": claim.task_id,
                "dtq.task_type": claim.task_type,
                "dtq.attempt": claim.attempt,
                "dtq.priority": claim.priority,
            },
        )
        self.context = _inject(self._span)
        self._token = _context_api().attach(api.set_span_in_context(self._span))

    def end(self, outcome: Outcome | None) -> None:
        """End the span. outcome: None when nothing is recorded of the run, since its claim was over."""
        api = sys.modules[_API]
        _context_api().detach(self._token)
        self._span.set_attribute("dtq.outcome", "dropped" if outcome is None else outcome.kind)
        error = None if outcome is None else outcome.error
        if error is not None:
            told = {"exception.type": error.error_class, "exception.message": error.message}
            if error.traceback:
                told["exception.stacktrace"] = error.traceback
            self._span.add_event("exception", told)
            self._span.set_status(api.Status(api.StatusCode.ERROR, f"{error.error_class}: {error.message}"))
        self._span.end()


def begin_run(claim: Claim, parent: TraceContext | None) -> RunSpan | None:
    """Begin the span of a run in this thread; None where OpenTelemetry is not in use."""
    tracer = _tracer()
    return None if tracer is None else RunSpan(claim, tracer, parent)


@contextmanager
def sending(submissions: Sequence[Submission]) -> Iterator[None]:
    """Let what is submitted inside belong to a span of its own, where OpenTelemetry is in use."""
    tracer = _tracer()
    if tracer is None:
        yield
        return
    api = sys.modules[_API]
    here = api.get_current_span().get_span_context().is_valid
    first = submissions[0]
    span = tracer.start_span(
        f"send {first.task_type}" if len(submissions) == 1 else "send",
        context=None if here else _extract(trace.carried()),
        kind=api.SpanKind.PRODUCER,
        attributes={
            "messaging.system": "dtq",
            "messaging.operation.type": "send",
            "messaging.destination.name": first.queue,
            "messaging.batch.message_count": len(submissions),
        },
    )
    with api.use_span(span, end_on_exit=True), trace.carrying(_inject(span)):
        yield


@contextmanager
def continuing(context: TraceContext | None) -> Iterator[None]:
    """Let spans that are made inside be children of another process's span."""
    with trace.carrying(context):
        if context is None or _tracer() is None:
            yield
            return
        token = _context_api().attach(_extract(context))
        try:
            yield
        finally:
            _context_api().detach(token)


def _tracer() -> Tracer | None:
    api = sys.modules.get(_API)
    if api is None or type(api.get_tracer_provider()).__name__ == "ProxyTracerProvider":  # nobody has set one up
        return None
    tracer: Tracer = api.get_tracer("dtq")
    return tracer


def _context_api() -> Any:
    return importlib.import_module("opentelemetry.context")


def _propagator() -> Any:
    return importlib.import_module("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()


def _extract(context: TraceContext | None) -> Any:
    """Return OpenTelemetry's context for ours; an empty one, and so the root of a new trace, for None."""
    empty = _context_api().Context()
    return empty if context is None else _propagator().extract(context.as_json(), empty)


def _inject(span: Any) -> TraceContext | None:
    carrier: dict[str, str] = {}
    _propagator().inject(carrier, sys.modules[_API].set_span_in_context(span))
    return trace.from_json(carrier)
