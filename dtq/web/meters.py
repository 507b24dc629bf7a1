"""What each process of the web server counts by itself: requests, and submissions that were refused.

All label values come from bounded sets: routes, known methods, status codes, error codes, and a number of queues.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flask import Flask, Response, request
from prometheus_client import CollectorRegistry, Counter, Histogram, values
from prometheus_client.multiprocess import MultiProcessCollector

from dtq.errors import DtqError
from dtq.web import multiprocess

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

if multiprocess.DIRECTORY in os.environ:
    values.ValueClass = values.MultiProcessValue(multiprocess.slot)  # type: ignore[no-untyped-call]

MAX_QUEUES = 100
"""Queues of refused submissions that a process tells by name: anybody can make names up."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_STARTED = "dtq.started"

_registry = CollectorRegistry()
_requests = Histogram(
    "dtq_http_request_duration_seconds",
    "Requests by how long they took, those that waited for a task (?wait=) included",
    ("method", "route", "status"),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0),
    registry=_registry,
)
_rejected = Counter(
    "dtq_ingest_rejected",
    "Submissions that this web server refused; the reason is the code of the error",
    ("queue", "reason"),
    registry=_registry,
)
_known_queues: set[str] = set()
_knowing = threading.Lock()


def register(app: Flask) -> None:
    """Measure every request of an app."""
    app.before_request(_begin)
    app.after_request(_end)


def rejected(error: DtqError, queue: str | None = None) -> None:
    """Count a submission that is refused. queue: the one that it was for; None: it could not be read so far."""
    _rejected.labels("_unknown" if queue is None else _bounded(queue), error.code.lower()).inc()


def answered(method: str, route: str, status: int, took_s: float) -> None:
    """Count a request. method and route: from a bounded set."""
    _timer(method, route, status).observe(took_s)


@cache
def _timer(method: str, route: str, status: int) -> Histogram:
    """Finding it anew costs more than counting."""
    return _requests.labels(method, route, status)


def own_figures() -> Collector:
    """Return the figures of all processes of this web server, or of this process where there is but one."""
    if multiprocess.DIRECTORY not in os.environ:
        return _registry
    together = CollectorRegistry()
    AllProcesses(together)  # type: ignore[no-untyped-call]
    return together


class AllProcesses(MultiProcessCollector):
    """The figures of all processes, from their files."""

    def collect(self) -> Iterable[Metric]:
        """Add up the files but the empty ones: a process that is killed as it makes its file leaves such a one."""
        files = [str(file) for file in Path(self._path).glob("*.db") if file.stat().st_size]
        metrics: Iterable[Metric] = self.merge(files, accumulate=True)  # type: ignore[no-untyped-call]
        return metrics


def _begin() -> None:
    request.environ[_STARTED] = time.perf_counter()


def _end(response: Response) -> Response:
    rule = request.url_rule
    method = request.method if request.method in _METHODS else "other"
    took_s = time.perf_counter() - request.environ.get(_STARTED, time.perf_counter())
    answered(method, "(none)" if rule is None else rule.rule, response.status_code, took_s)
    return response


def _bounded(queue: str) -> str:
    if queue in _known_queues:
        return queue
    with _knowing:
        if len(_known_queues) >= MAX_QUEUES:
            return "_other"
        _known_queues.add(queue)
        return queue
