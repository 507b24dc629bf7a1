"""gunicorn's configuration: `gunicorn -c python:dtq.web.gunicorn_conf app:app`."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from pathlib import Path

from gunicorn.arbiter import Arbiter

from dtq.apikeys import KeyRing
from dtq.durability import Durability
from dtq.errors import ConfigurationError, RedisUnavailable
from dtq.keys import Keys
from dtq.log import configure_logging
from dtq.redisio import Server
from dtq.serverinfo import warn_of_eviction, with_advice
from dtq.settings import Settings, load_settings
from dtq.web import multiprocess
from dtq.web.origin import is_local

log = logging.getLogger(__name__)


def _settings() -> Settings:
    try:
        found = load_settings()
        KeyRing(found.api_key, Path(found.api_keys_file) if found.api_keys_file else None)
        return found
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


_own_figures = multiprocess.prepare()  # before a process imports what counts


def on_exit(server: Arbiter) -> None:
    """Remove the files of the figures."""
    multiprocess.forget(_own_figures)


def on_starting(server: Arbiter) -> None:
    """Refuse a port that is taken (with reuse_port two servers would share it without a word), and tell ours."""
    _warn_if_open([address[0] for address in server.cfg.address if isinstance(address, tuple)])
    if not server.cfg.reuse_port or "GUNICORN_PID" in os.environ:  # the latter: taking over from a running one
        return
    for address in server.cfg.address:
        if isinstance(address, tuple):
            _require_free(*address[:2])
            if server.log is not None:
                server.log.info("serving http://%s:%s", *address[:2])


def when_ready(server: Arbiter) -> None:
    """Look once, before there are processes that would each say it, whether the Redis keeps what it is given."""
    if not _loaded.redis_url or _loaded.redis_url.startswith("memory:"):
        return  # dtq's own, which does
    try:
        redis = Server.connect(_loaded.redis_url, namespace=_loaded.namespace)
        if _loaded.durable_writes:
            with contextlib.suppress(RedisUnavailable):  # then the first submission finds out
                Durability(redis, Keys(_loaded.namespace)).require()
    except ConfigurationError as error:
        sys.exit(str(error))
    try:
        redis.now()
    except RedisUnavailable as error:  # it may come; till then each call is told so
        log.warning("redis is away: %s", with_advice(error, _loaded.redis_url))
    else:
        warn_of_eviction(redis)
    redis.close()


def _warn_if_open(hosts: list[str]) -> None:
    """Say so when others than this machine can reach a server that asks nobody for a key."""
    reachable = [host for host in hosts if not is_local(host)]
    if reachable and not _loaded.api_key and not _loaded.api_keys_file:
        logging.getLogger("dtq.web").warning(
            "open to everybody who reaches %s: no API key is asked for; set DTQ_API_KEY or DTQ_API_KEYS_FILE",
            ", ".join(host or "this machine" for host in reachable),
        )


def _require_free(host: str, port: int) -> None:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        sys.exit(f"cannot listen on {host}:{port} (DTQ_API_HOST, DTQ_API_PORT): {error.strerror or error}")
