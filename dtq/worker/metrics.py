"""The figures of one worker process over HTTP, for Prometheus: `GET /metrics` on DTQ_WORKER_METRICS_PORT."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from functools import cached_property
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import TYPE_CHECKING

from dtq.worker.state import WorkerState

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

log = logging.getLogger(__name__)

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATIENCE_S = 2.0
"""A client that is silent for so long is given up: they are served one after the other."""


class MetricsServer:
    """Answers in a thread of its own."""

    def __init__(self, state: WorkerState, running: Callable[[], int]) -> None:
        """running: how many handlers run now."""
        self._state = state
        self._running = running
        self._server: TCPServer | None = None

    def start(self, host: str, port: int) -> None:
        """Listen. A port that cannot be had is said once, and the worker does without."""
        text = self._text

        class Handler(_Handler):
            figures = staticmethod(text)

        try:
            self._server = (_ServerV6 if ":" in host else _Server)((host, port), Handler)
        except (OSError, OverflowError) as error:
            log.warning(
                "no metrics: cannot listen on %s:%d (%s); another DTQ_WORKER_METRICS_PORT, or 0 for none, ends this",
                host,
                port,
                getattr(error, "strerror", None) or error,
            )
            return
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @cached_property
    def _registry(self) -> CollectorRegistry:
        from dtq.worker.figures import registry  # a worker imports only what it needs, and this one is asked first

        return registry(self._state, self._running)

    def _text(self) -> bytes:
        from prometheus_client.exposition import generate_latest

        return generate_latest(self._registry)


class _Server(TCPServer):
    """Not http.server's own: that one asks the name service who this host is, and may wait for it."""

    allow_reuse_address = True


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE_S
    figures: Callable[[], bytes]

    def do_GET(self) -> None:
        """Answer with the figures, whatever the query."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        text = self.figures()
        self.send_response(200)
        self.send_header("Content-Type", _CONTENT_TYPE)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of requests: the log tells outcomes."""
