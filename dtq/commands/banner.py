"""What `flask dtq up` says once everything runs: where to look, and what to try."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from dtq import __version__
from dtq.log import escape
from dtq.model import WorkerInfo
from dtq.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What runs, once it does."""

    url: str
    directory: str
    redis: str
    workers: Sequence[WorkerInfo]
    task_types: Sequence[str]
    pids: dict[str, int | None]

    def as_json(self) -> dict[str, Any]:
        """Return it for scripts."""
        return {
            "status": "running",
            "version": __version__,
            "pid": os.getpid(),
            "url": self.url,
            "directory": self.directory,
            "redis": self.redis,
            "workers": [worker.worker_id for worker in self.workers],
            "task_types": list(self.task_types),
            "pids": self.pids,
        }


def print_banner(running: Running, settings: Settings, *, colour: bool | None) -> None:
    """Write it to stdout. colour: None for what the terminal can."""
    for line in _lines(running, settings):
        click.echo(line, color=colour)


def _lines(running: Running, settings: Settings) -> Iterable[str]:
    def row(name: str, text: str) -> str:
        return f"  {click.style(name.ljust(8), bold=True)}{text}"

    flask = flask_command()
    yield ""
    yield click.style(f"dtq {__version__} is running in {running.directory} (pid {os.getpid()})", fg="green", bold=True)
    yield row("web", f"{running.url}/   its API: {running.url}/api/v1/openapi.json")
    yield row("worker", _worker(running))
    yield row("redis", running.redis)
    yield ""
    yield "Submit a task, and look at the last ones:"
    yield from (f"  {line}" for line in curl_lines(running.url, running.task_types, settings))
    yield "See more of it, and how it is going:"
    yield f"  {flask} dtq demo"
    yield f"  {flask} dtq status"
    yield "Ctrl-C stops everything in order."
    yield ""


def curl_lines(url: str, task_types: Sequence[str], settings: Settings) -> list[str]:
    """Return commands that work as they are printed."""
    key = ' -H "X-API-Key: $DTQ_API_KEY"'
    to_write = key if settings.protect in ("writes", "all") else ""
    to_read = key if settings.protect == "all" else ""
    task_type = "echo_task" if "echo_task" in task_types or not task_types else task_types[0]
    payload = '{"hello": "world"}' if task_type == "echo_task" else "{}"
    queue = "" if "default" in settings.queues else f', "queue": "{settings.queues[0]}"'
    body = f'{{"task_type": "{task_type}", "payload": {payload}, "priority": 9{queue}}}'
    return [
        f"curl -s {url}/api/v1/tasks -H 'Content-Type: application/json'{to_write} -d '{body}'",
        f"curl -s '{url}/api/v1/tasks?limit=5'{to_read}",
    ]


def flask_command() -> str:
    """Return what runs `flask` for this application from the current directory, as short as it can be."""
    program, found = sys.argv[0], shutil.which("flask")
    if os.path.basename(program) == "__main__.py":
        words = [sys.executable, "-m", "flask"]
    elif found is not None and os.path.realpath(found) == os.path.realpath(program):
        words = ["flask"]
    else:
        near = os.path.relpath(program)
        words = [program if near.startswith("..") else near]
    application = getattr(click.get_current_context().find_root().obj, "app_import_path", None)
    if application and application != os.environ.get("FLASK_APP"):
        words += ["--app", application]
    return shlex.join(words)


def _worker(running: Running) -> str:
    if not running.workers:
        return "not ready yet"
    queues = ",".join(dict.fromkeys(queue for worker in running.workers for queue in worker.queues))
    slots = sum(worker.concurrency for worker in running.workers)
    types = ", ".join(running.task_types[:4]) + (", ..." if len(running.task_types) > 4 else "")
    return escape(f"{running.workers[0].worker_id}: queues {queues}, {slots} at once, tasks {types or 'none'}")
