"""Single submissions: the one call whose rate matters, and how it is answered without Flask around it.

Flask's contexts, routing and hooks cost a submission more than all that dtq does for it (docs/performance.md). So what
is plainly a program's `POST /api/v1/tasks` is answered here; everything else, and every error, goes through the app.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dtq import trace
from dtq.errors import DtqError
from dtq.model import Task
from dtq.submission import parse_submission
from dtq.trace import TraceContext
from dtq.web import meters
from dtq.web.auth import protects
from dtq.web.engine import Engine
from dtq.web.http import BODY_MARGIN_BYTES, common_headers, idempotency_key, json_body, read_json_body
from dtq.web.origin import is_known_host

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

ROUTE = "/api/v1/tasks"

_RAISED = "dtq.raised"
_STATUS = {200: "200 OK", 202: "202 ACCEPTED"}


def accept(shared: Engine, environ: WSGIEnvironment) -> Task:
    """Submit the task that a request asks for. Raises what refuses it."""
    if _RAISED in environ:
        raise environ[_RAISED]
    queue = None
    try:
        body = read_json_body(environ, shared.limits.max_payload_bytes + BODY_MARGIN_BYTES)
        submission = parse_submission(body, shared.limits, idempotency_key(environ))
        queue = submission.queue
        with trace.carrying(trace_of(environ)):
            outcome = shared.client.submit_parsed([submission])[0]
        if isinstance(outcome, DtqError):
            raise outcome
    except DtqError as error:
        meters.rejected(error, queue)
        raise
    return outcome


def trace_of(environ: WSGIEnvironment) -> TraceContext | None:
    """Return the trace that the caller is in."""
    return trace.read(environ.get("HTTP_TRACEPARENT"), environ.get("HTTP_TRACESTATE"))


def location(task: Task) -> str:
    """Return the path of a task."""
    return f"{ROUTE}/{task.task_id}"


class Intake:
    """A WSGI application that answers single submissions, and lets `rest` answer everything else."""

    def __init__(self, shared: Engine, rest: WSGIApplication) -> None:
        self._shared = shared
        self._rest = rest

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        if not self._is_plain(environ):
            return self._rest(environ, start_response)
        started = time.perf_counter()
        try:
            task = accept(self._shared, environ)
        except Exception as error:
            environ[_RAISED] = error  # the app's view raises it again: there all errors are answered
            return self._rest(environ, start_response)
        body, status = json_body(task.as_json()), 200 if task.duplicate else 202
        headers = [
            ("Location", location(task)),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            *common_headers(environ),
        ]
        start_response(_STATUS[status], headers)
        meters.answered("POST", ROUTE, status, time.perf_counter() - started)
        return [body]

    def _is_plain(self, environ: WSGIEnvironment) -> bool:
        """Whether this is a submission that `allow("write")` lets pass without a look at keys and pages of others."""
        return (
            environ["PATH_INFO"] == ROUTE
            and environ["REQUEST_METHOD"] == "POST"
            and not environ.get("QUERY_STRING")
            and not protects(self._shared, "write")
            and "HTTP_ORIGIN" not in environ
            and "HTTP_SEC_FETCH_SITE" not in environ
            and is_known_host(self._shared, environ)
        )
