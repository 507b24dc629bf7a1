"""`flask dtq worker`: who works, and working."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from dtq.commands.console import Exit, Failure, Group, actor, connect, json_option, print_json, redis_now, when
from dtq.commands.tables import Column, print_table
from dtq.commands.watching import watch_option
from dtq.control import Command
from dtq.model import WorkerInfo

PROJECT = Path(__file__).resolve().parents[2]

WORKER_COLUMNS = (
    Column(name="WORKER", cut=True),
    Column(name="STATE"),
    Column(name="RUNNING", right=True),
    Column(name="QUEUES", cut=True),
    Column(name="HEARTBEAT", right=True, optional=True),
    Column(name="STARTED", right=True, optional=True),
    Column(name="HOST", cut=True, optional=True),
    Column(name="PID", right=True, optional=True),
)


@click.group("worker", cls=Group)
def worker() -> None:
    """Look at workers, tell them to rest or to end, or be one."""


@worker.command("list")
@watch_option
@json_option
def list_workers(as_json: bool) -> None:
    """List the live workers."""
    client = connect()
    found = client.queries.workers()
    if as_json:
        print_json({"workers": [one.as_json() for one in found]})
    else:
        print_workers(found, redis_now(client))


def print_workers(found: Sequence[WorkerInfo], now: float) -> None:
    """Write a table of workers."""
    rows = [
        (
            one.worker_id,
            one.state,
            f"{one.running}/{one.concurrency}",
            ",".join(one.queues),
            when(one.heartbeat_at, now),
            when(one.started_at, now),
            one.host,
            one.pid,
        )
        for one in found
    ]
    print_table(WORKER_COLUMNS, rows, empty="no worker is running")


@worker.command("quiet")
@click.argument("worker_id")
@click.option("--reason", default="", help="Kept in the audit.")
@json_option
def quiet(worker_id: str, reason: str, as_json: bool) -> None:
    """Tell a worker to claim nothing more; what it runs goes on."""
    _tell(worker_id, "quiet", reason, as_json)


@worker.command("stop")
@click.argument("worker_id")
@click.option("--reason", default="", help="Kept in the audit.")
@json_option
def stop(worker_id: str, reason: str, as_json: bool) -> None:
    """Tell a worker to drain and to end."""
    _tell(worker_id, "stop", reason, as_json)


def _tell(worker_id: str, command: Command, reason: str, as_json: bool) -> None:
    changed = connect().tell_worker(worker_id, command, actor=actor(reason))
    if as_json:
        print_json({"worker_id": worker_id, "command": command, "changed": changed})
    else:
        click.echo(f"{worker_id} is told{'' if changed else ' already'}: {command}")


@worker.command("run", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(arguments: tuple[str, ...]) -> None:
    """Run a worker: `python worker.py`, with the same options; --help tells them."""
    script = worker_script()
    environment = {name: value for name, value in os.environ.items() if name != "FLASK_RUN_FROM_CLI"}
    sys.stdout.flush()
    sys.stderr.flush()
    # In place of this process: signals reach the worker itself, and it has nothing of Flask in its memory.
    os.execve(sys.executable, [sys.executable, script, *arguments], environment)


def worker_script() -> str:
    """Return the path of `worker.py`. Raises Failure where only the package dtq is installed."""
    script = PROJECT / "worker.py"
    if not script.is_file():
        raise Failure(f"there is no {script}: run this from a clone of dtq", Exit.CONFIGURATION)
    return str(script)
