"""`worker.py --check`: whether the heartbeat of this machine's worker is fresh, for health checks of containers."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from dtq.embedded import EmbeddedServer
from dtq.errors import DtqError
from dtq.model import WorkerInfo
from dtq.queries import Queries
from dtq.redisio import Server
from dtq.serverinfo import with_advice
from dtq.settings import Settings
from dtq.worker.supervisor import ExitCode

MISSED_HEARTBEATS = 3


def check(settings: Settings) -> int:
    """Look at the heartbeats and say what was found on stdout, or on stderr when something is wrong.

    Returns 0 when as many workers are alive as this machine should have, 1 when not, 69 when Redis does not answer.
    """
    try:
        server = Server.connect(_url(settings), namespace=settings.namespace)
        try:
            now = server.now()
            workers = Queries(server, settings).workers()
        finally:
            server.close()
    except DtqError as error:
        sys.stderr.write(f"{with_advice(error, settings.redis_url)}\n")
        return int(ExitCode.REDIS_AWAY)
    patience_s = max(settings.heartbeat_interval_s * MISSED_HEARTBEATS, 3.0)
    alive = [one.worker_id for one in workers if _is_ours(one, settings) and now - one.heartbeat_at < patience_s]
    wanted = settings.worker_processes
    if len(alive) >= wanted:
        sys.stdout.write(f"alive: {', '.join(alive)}\n")
        return 0
    name = f"worker {settings.worker_id}" if settings.worker_id else f"a worker on {socket.gethostname()}"
    sys.stderr.write(f"no fresh heartbeat of {name}: {len(alive)} of {wanted} in the last {patience_s:g} s\n")
    return 1


def _url(settings: Settings) -> str:
    if settings.redis_url:
        return settings.redis_url
    return EmbeddedServer(Path(settings.directory)).url  # only looked for: a check starts no server


def _is_ours(worker: WorkerInfo, settings: Settings) -> bool:
    if not settings.worker_id:
        return worker.host == socket.gethostname()
    return worker.worker_id == settings.worker_id or worker.worker_id.startswith(f"{settings.worker_id}-")
