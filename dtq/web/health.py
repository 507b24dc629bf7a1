"""Whether this process lives, whether it can do its work, and the page at the root that tells where things are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask import Blueprint, Response

from dtq import __version__
from dtq.serverinfo import eviction_policy, loses_keys
from dtq.web.engine import engine
from dtq.web.http import answer
from dtq.web.operation import Operation, operation
from dtq.web.schemas import HealthAnswer, ReadyAnswer

if TYPE_CHECKING:
    pass

bp = Blueprint("health", __name__)
root_bp = Blueprint("root", __name__)
"""What stands at the root where the dashboard is not served."""

ROOT = f"""dtq {__version__} is running.

submit a task   POST /api/v1/tasks   {{"task_type": "echo_task", "payload": {{}}}}   Content-Type: application/json
look at it      GET  /api/v1/tasks/<task_id>?wait=30
description     GET  /api/v1/openapi.json
health          GET  /health   this process answers
                GET  /ready    and so does its Redis
figures         GET  /metrics  for Prometheus
"""


@root_bp.get("/")
def root() -> Response:
    """Say what this is and where to go on."""
    return Response(ROOT, content_type="text/plain; charset=utf-8")


@bp.get("/health")
@operation(Operation(need="nothing", tag="health", answers={200: HealthAnswer}))
def health() -> Response:
    """Say that this process answers; touches nothing else."""
    return answer({"status": "ok"})


@bp.get("/ready")
@operation(Operation(need="nothing", tag="health", answers={200: ReadyAnswer}, problems=(503,)))
def ready() -> Response:
    """Say that the process can do its work: Redis answers, and runs its scripts."""
    client = engine().client
    client.server.call("PING")
    client.queries.script_works()
    policy = eviction_policy(client.server)
    redis = {
        "server": "embedded" if client.embedded else client.server.kind,
        "url": client.server.safe_url,
        "eviction_policy": policy,
    }
    warnings = []
    if loses_keys(policy):
        warnings.append(
            f"Redis evicts keys when its memory is full (maxmemory-policy {policy}): tasks can be lost; set noeviction"
        )
    if not client.queries.workers():
        warnings.append("no worker is running: tasks are accepted and wait")
    return answer({"status": "ready", "version": __version__, "redis": redis, "warnings": warnings})
