"""From settings to a running worker in this process, and to its exit code."""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import socket
import threading
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from dtq import registry
from dtq.broker import Broker
from dtq.embedded import EmbeddedServer
from dtq.errors import ConfigurationError, ServerStartFailed
from dtq.outage import LONGEST_PAUSE_S, Outage
from dtq.redisio import Server
from dtq.registry import Registry
from dtq.serverinfo import warn_of_eviction
from dtq.settings import Settings
from dtq.streams import Doorbell, LeaderBell
from dtq.worker.name import name_taken
from dtq.worker.reload import Reloader
from dtq.worker.state import WorkerState
from dtq.worker.supervisor import ExitCode, Supervisor

if TYPE_CHECKING:
    from dtq.client import Client
    from dtq.worker.metrics import MetricsServer

log = logging.getLogger(__name__)

MAX_ID_CHARS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a command line says of one run, beside the settings."""

    max_tasks: int | None = None
    """Take no more than this many tasks, then end."""
    burst: bool = False
    """End when there is nothing left to do."""
    number: int | None = None
    """Which of several processes this is; None for the only one."""
    reloader: Reloader | None = None
    """Watches the files of the tasks, and is asked by the caller at the end whether to begin anew."""


def new_worker_id(settings: Settings, number: int | None = None) -> str:
    """Return the worker's id: the one that was given, or one that nobody had before."""
    if settings.worker_id:
        return settings.worker_id if number is None else f"{settings.worker_id}-{number}"
    host = re.sub(r"[^A-Za-z0-9_.:-]", "-", socket.gethostname())
    return f"{host[: MAX_ID_CHARS - 20]}-{os.getpid()}-{secrets.token_hex(2)}"


def run_worker(settings: Settings, options: Options, handlers: Registry | None = None) -> ExitCode:
    """Run one worker in this process until it ends. Errors of the start are logged, and told by the exit code.

    Called from the main thread it takes the signals TERM, INT, HUP, USR1 and USR2.
    """
    known = registry.default if handlers is None else handlers
    embedded: EmbeddedServer | None = None
    try:
        known.load(settings.tasks)
        url = settings.redis_url
        if not url:
            embedded = EmbeddedServer(settings.directory, settings.redis_server or None)
            embedded.ensure()
            url = embedded.url
        server = Server.connect(url, namespace=settings.namespace)
    except ServerStartFailed as error:
        log.error("%s", error)
        return ExitCode.REDIS_AWAY
    except ConfigurationError as error:
        log.error("%s", error)
        return ExitCode.CONFIGURATION
    try:
        return _run(settings, options, known, server, embedded)
    finally:
        server.close()
        if embedded is not None:
            embedded.release()


def _run(
    settings: Settings, options: Options, handlers: Registry, server: Server, embedded: EmbeddedServer | None
) -> ExitCode:
    broker = Broker(server, settings)
    state = WorkerState(
        worker_id=new_worker_id(settings, options.number),
        settings=settings,
        registry=handlers,
        broker=broker,
        queues=settings.queues,
        concurrency=settings.worker_concurrency,
        max_tasks=options.max_tasks,
        burst=options.burst,
        # what is held is renewed before anybody takes it: within a third of the lease after Redis is back
        outage=Outage(longest_pause_s=min(LONGEST_PAUSE_S, settings.visibility_timeout_s / 8)),
    )
    doorbell = Doorbell(server, broker.keys, state.queues)
    leader_bell = LeaderBell(server, broker.keys)
    supervisor = Supervisor(state, doorbell, leader_bell, start_redis=None if embedded is None else embedded.ensure)
    supervisor.at_start = lambda: warn_of_eviction(server)
    if settings.worker_id:  # else nobody has it
        supervisor.name_taken = lambda: name_taken(broker, state.worker_id, lambda: supervisor.requests.stop)
    reloader = options.reloader
    if reloader is not None:
        supervisor.at_each_check = lambda: reloader.look(supervisor.stop)
    before = _take_signals(supervisor, several=options.number is not None)  # whoever reads the next line may send one
    log.info(
        "worker %s: queues %s, %d slots, Redis %s, tasks %s",
        state.worker_id,
        ",".join(state.queues),
        state.concurrency,
        server.safe_url if embedded is None else f"embedded ({server.safe_url})",
        ", ".join(handlers.names()) or "none",
    )
    registry.use_client(make=lambda: _client_of(settings))
    metrics = _serve_metrics(settings, options, supervisor)
    try:
        return supervisor.run()
    finally:
        if metrics is not None:
            metrics.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
        made = registry.use_client()
        if made is not None:
            made.close()
        doorbell.close()
        leader_bell.close()


def _serve_metrics(settings: Settings, options: Options, supervisor: Supervisor) -> MetricsServer | None:
    """Start to serve this process's figures. Of several processes each has a port of its own, one after the other."""
    if not settings.worker_metrics_port:
        return None
    from dtq.worker.metrics import MetricsServer  # not where nobody asks for it

    server = MetricsServer(supervisor.state, lambda: len(supervisor.pool.running()))
    server.start(settings.api_host, settings.worker_metrics_port + (options.number or 1) - 1)
    return server


def _take_signals(supervisor: Supervisor, *, several: bool) -> dict[int, Any]:
    """Install the handlers, which only set flags. Returns those that were there before.

    several: this is one of the processes of a parent that passes requests on, as INT. A supervisor that sends TERM to
    all of them has asked once, though both come.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    asked: set[int] = set()

    def stop(number: int, frame: FrameType | None) -> None:
        if not several or number in asked or not asked:
            supervisor.stop()
        asked.add(number)

    def be_quiet(number: int, frame: FrameType | None) -> None:
        supervisor.be_quiet()

    def show_stacks(number: int, frame: FrameType | None) -> None:
        supervisor.show_stacks()

    wanted = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGUSR1: be_quiet, signal.SIGUSR2: show_stacks}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else it was started by nohup
        wanted[signal.SIGHUP] = stop
    return {number: signal.signal(number, handler) for number, handler in wanted.items()}


def _client_of(settings: Settings) -> Client:
    """Return the client of `handler.submit` in this worker. Made at its first use: a worker imports what it runs."""
    from dtq.client import Client

    return Client(settings=settings)
