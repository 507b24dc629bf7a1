"""What `flask dtq up` says once everything runs: where to look, and what to try."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from dtq import __version__
from dtq.commands.console import program
from dtq.log import escape
from dtq.model import WorkerInfo
from dtq.settings import Settings

EXAMPLES = "examples.tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What runs, once it does."""

    url: str
    directory: str
    redis: str
    workers: Sequence[WorkerInfo]
    task_types: Sequence[str]
    pids: dict[str, int | None]

    @property
    def own_types(self) -> list[str]:
        """Task types of these workers; `task_types` are those of all on this Redis."""
        return sorted({name for worker in self.workers for name in worker.task_types})

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

    yield ""
    yield click.style(f"dtq {__version__} is running in {running.directory} (pid {os.getpid()})", fg="green", bold=True)
    yield row("web", f"{running.url}/   its API: {running.url}/api/v1/openapi.json")
    yield row("worker", _worker(running))
    yield row("redis", running.redis)
    yield ""
    yield "Submit a task, and look at the last ones:"
    yield from (f"  {line}" for line in curl_lines(running.url, running.own_types, settings))
    yield "See more of it, and how it is going:"
    if has_examples(settings):
        yield f"  {program()} dtq demo"
    yield f"  {program()} dtq status"
    yield "Ctrl-C stops everything in order."
    yield ""


def has_examples(settings: Settings) -> bool:
    """Whether the worker has the handlers that the demo is made of."""
    return EXAMPLES in (name.strip() for name in settings.tasks.split(","))


def curl_lines(url: str, task_types: Sequence[str], settings: Settings) -> list[str]:
    """Return commands that work as they are printed; what needs to be filled in is a comment."""
    key = ' -H "X-API-Key: $DTQ_API_KEY"'
    to_write = key if settings.protect in ("writes", "all") else ""
    to_read = key if settings.protect == "all" else ""
    queue = "" if "default" in settings.queues else f', "queue": "{settings.queues[0]}"'

    def submit(task_type: str, payload: str) -> str:
        body = f'{{"task_type": "{task_type}", "payload": {payload}, "priority": 9{queue}}}'
        return f"curl -s {url}/api/v1/tasks -H 'Content-Type: application/json'{to_write} -d '{body}'"

    lines = []
    if has_examples(settings):
        lines.append(submit("echo_task", '{"hello": "world"}'))
    elif task_types:
        lines += [f"# with the payload that {task_types[0]} takes:", f"# {submit(task_types[0], '{}')}"]
    return [*lines, f"curl -s '{url}/api/v1/tasks?limit=5'{to_read}"]


def _worker(running: Running) -> str:
    if not running.workers:
        return "not ready yet"
    queues = ",".join(dict.fromkeys(queue for worker in running.workers for queue in worker.queues))
    slots = sum(worker.concurrency for worker in running.workers)
    types = ", ".join(running.task_types[:4]) + (", ..." if len(running.task_types) > 4 else "")
    return escape(f"{running.workers[0].worker_id}: queues {queues}, {slots} at once, tasks {types or 'none'}")
