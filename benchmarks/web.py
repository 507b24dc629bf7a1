"""Submitting over HTTP: gunicorn with 2 processes of 4 threads, 16 connections; dtq's API beside a bare Flask view."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

from benchmarks.environments import PROJECT, python_of
from benchmarks.handler import payload
from benchmarks.stand import Figures, Processes, Stand, free_port, wait_for
from benchmarks.systems import BACKEND, system_of

PROCESSES, THREADS = 2, 4
BATCH = 100

_Started: TypeAlias = AbstractContextManager[tuple[str, Processes]]
"""Gives the URL to post to, and the processes of the server."""

MANY = "dtq, a hundred a request"
ROWS: Sequence[str] = (
    *("flask alone", "flask + bare", "flask + dramatiq", "flask + rq", "flask + celery"),
    *("dtq", MANY),
)


def over_http(stand: Stand, name: str, scale: float) -> Figures:
    """Measure one server. name: of ROWS."""
    body: object = {"task_type": "bench", "payload": payload(1)}
    if name == MANY:
        body = {"tasks": [body] * BATCH}
    path = stand.directory / "body"
    path.write_text(json.dumps(body))
    stand.reset()
    start = _dtq if name.startswith("dtq") else _flask(name)
    with start(stand) as (url, server):
        target = f"{url}/batch" if name == MANY else url
        _load(target, path, 3.0)
        cpu, used = server.cpu_s(), stand.used()
        told = _load(target, path, max(2.0, 8 * scale))
        cpu, spent = server.cpu_s() - cpu, stand.used() - used
        rss = server.rss_mib()
    if told["wrong"]:
        raise RuntimeError(f"{name}: {told['wrong']:g} of {told['number']:g} requests were refused")
    stand.reset()
    tasks = told["number"] * (BATCH if name == MANY else 1)
    return {
        "requests/s": told["number"] / told["seconds"],
        "tasks/s": tasks / told["seconds"],
        "p50 ms": told["p50"],
        "p99 ms": told["p99"],
        "server CPU us a request": cpu / told["number"] * 1e6,
        "Redis CPU us a task": spent["cpu_s"] / tasks * 1e6,
        "RSS MiB": rss,
    }


def _load(url: str, body: Path, seconds: float) -> Mapping[str, float]:
    command = [sys.executable, "-m", "benchmarks.load", url, "--body", str(body), "--seconds", str(seconds)]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=True)
    told: dict[str, float] = json.loads(ended.stdout)
    return told


def _flask(name: str) -> Callable[[Stand], _Started]:
    backend = name.removeprefix("flask + ") if "+" in name else "none"

    def start(stand: Stand) -> _Started:
        port = free_port()
        command = [
            *(python_of(backend), "-m", "gunicorn", "--workers", str(PROCESSES), "--worker-class", "gthread"),
            *("--threads", str(THREADS), "--bind", f"127.0.0.1:{port}", "--reuse-port", "--log-level", "warning"),
            *("--no-control-socket", "benchmarks.systems.http:app"),
        ]
        variables = stand.environment(system_of("bare"), **{BACKEND: backend})
        return _serving(stand, command, variables, port, "/tasks")

    return start


def _dtq(stand: Stand) -> _Started:
    port = free_port()
    variables = stand.environment(
        system_of("dtq"),
        DTQ_API_PORT=str(port),
        DTQ_WEB_PROCESSES=str(PROCESSES),
        DTQ_WEB_THREADS=str(THREADS),
        DTQ_MAX_WEBSOCKETS="0",
    )
    command = [python_of("dtq"), "-m", "gunicorn", "-c", "python:dtq.web.gunicorn_conf", "app:app"]
    return _serving(stand, command, variables, port, "/api/v1/tasks")


@contextmanager
def _serving(
    stand: Stand, command: list[str], variables: dict[str, str], port: int, path: str
) -> Iterator[tuple[str, Processes]]:
    with stand.running(command, variables, "http", patience_s=30) as server:
        wait_for(lambda: all(_answers(port) for _ in range(4 * PROCESSES)), 60, "the web server", pause_s=0.2)
        yield f"http://127.0.0.1:{port}{path}", server


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        connection.getresponse().read()
    except OSError:
        return False
    finally:
        connection.close()
    return True
