"""gunicorn's configuration: `gunicorn -c python:dtq.web.gunicorn_conf app:app`."""

from __future__ import annotations

import os
import socket
import sys

from gunicorn.arbiter import Arbiter

from dtq.errors import ConfigurationError
from dtq.log import configure_logging
from dtq.settings import Settings, load_settings


def _settings() -> Settings:
    try:
        return load_settings()
    except ConfigurationError as error:
        sys.exit(str(error))


_loaded = _settings()
_host = f"[{_loaded.api_host}]" if ":" in _loaded.api_host else _loaded.api_host
configure_logging(_loaded.log_level, json=_loaded.log_json)

bind = f"{_host}:{_loaded.api_port}"
workers = _loaded.web_processes
threads = _loaded.web_threads
worker_class = "dtq.web.gthread.Worker"
logger_class = "dtq.web.gunicorn_log.Logger"
loglevel = _loaded.log_level.lower()
proc_name = "dtq-web"

# Each process has a queue of new connections of its own: shared, they go unevenly to the processes, and at random the
# rate of requests halves. Port 0 would give each process a port of its own.
reuse_port = _loaded.api_port != 0

keepalive = 75  # longer than the 60 s of usual load balancers; an idle connection costs no thread
graceful_timeout = 25  # below the 30 s after which container runtimes kill
timeout = 60
control_socket_disable = True
worker_tmp_dir = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a heartbeat must not wait for a disk


def on_starting(server: Arbiter) -> None:
    """Refuse a port that is taken (with reuse_port two servers would share it without a word), and tell ours."""
    if not server.cfg.reuse_port or "GUNICORN_PID" in os.environ:  # the latter: taking over from a running one
        return
    for address in server.cfg.address:
        if isinstance(address, tuple):
            _require_free(*address[:2])
            if server.log is not None:
                server.log.info("serving http://%s:%s", *address[:2])


def _require_free(host: str, port: int) -> None:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        sys.exit(f"cannot listen on {host}:{port} (DTQ_API_HOST, DTQ_API_PORT): {error.strerror or error}")
