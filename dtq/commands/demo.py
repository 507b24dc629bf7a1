"""`flask dtq demo`: a small, lively mix of tasks, and what becomes of each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from dtq.commands.console import (
    Exit,
    Failure,
    actor,
    connect,
    duration,
    json_option,
    on_terminal,
    print_json,
    program,
)
from dtq.commands.tables import STATUS_COLOURS, cut, table_width
from dtq.log import escape
from dtq.model import Task, dumps
from dtq.states import TERMINAL, Status

if TYPE_CHECKING:
    from dtq.client import Client

LIMIT_S = 60.0
POLL_S = 0.1
NARROWEST = 60
"""Columns that the picture needs; a narrower terminal gets lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One task of the demo."""

    told: str
    task_type: str
    ends: Status
    payload: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    cancel: bool = False


ACTS = (
    Act(told="the lowest priority", task_type="echo_task", payload={"said": "last"}, options={"priority": 0},
        ends=Status.SUCCEEDED),
    Act(told="the highest priority", task_type="echo_task", payload={"said": "first"}, options={"priority": 9},
        ends=Status.SUCCEEDED),
    Act(told="some work", task_type="fibonacci_task", payload={"n": 90}, ends=Status.SUCCEEDED),
    Act(told="reports how far it is", task_type="slow_task", payload={"seconds": 3}, ends=Status.SUCCEEDED),
    Act(told="fails twice, then works", task_type="flaky_task", payload={"fail_times": 2}, ends=Status.SUCCEEDED),
    Act(told="starts in two seconds", task_type="echo_task", payload={"said": "later"},
        options={"delay_seconds": 2}, ends=Status.SUCCEEDED),
    Act(told="cancelled before it starts", task_type="echo_task", options={"delay_seconds": 30}, cancel=True,
        ends=Status.CANCELLED),
    Act(told="cancelled while it runs", task_type="sleep_task", payload={"seconds": 20}, options={"priority": 8},
        cancel=True, ends=Status.CANCELLED),
    Act(told="fails until nothing is left", task_type="always_fail_task", payload={"message": "no luck"},
        options={"max_attempts": 2}, ends=Status.DEAD_LETTERED),
    Act(told="cannot ever work", task_type="permanent_fail_task", payload={"message": "no such account"},
        ends=Status.DEAD_LETTERED),
)  # fmt: skip
"""What is submitted, in this order, and how each should end."""


@click.command("demo")
@json_option
def demo(as_json: bool) -> None:
    """Submit a lively mix to a running stack and show what becomes of it.

    Exit status: 0 all went as told, 1 not, 75 not within a minute.
    """
    client = connect()
    known = client.queries.handlers()
    if not known:
        raise Failure(f"no worker is running: start everything with `{program()} dtq up`, then try again", Exit.FAILED)
    acts = [act for act in ACTS if act.task_type in known]
    if not acts:
        raise Failure("no worker has the tasks of the demo: start one with DTQ_TASKS=examples.tasks", Exit.FAILED)
    queue = next((name for worker in client.queries.workers() for name in worker.queues), "default")
    show = _Show(acts, quiet=as_json)
    ids = [_submit(client, act, queue) for act in acts]
    tasks = _follow(client, acts, ids, show)
    ended = all(task.terminal for task in tasks)
    as_told = all(task.status is act.ends for task, act in zip(tasks, acts, strict=True))
    if as_json:
        print_json({"as_told": as_told, "tasks": [task.as_json() for task in tasks]})
    if not ended:
        raise Failure(f"some tasks have not ended after {LIMIT_S:g} s", Exit.GAVE_UP)
    if not as_told:
        raise Failure("not all tasks ended as they should", Exit.FAILED)
    if not as_json:
        click.echo(f"\nall {len(tasks)} went as told; look at one: {program()} dtq task get {ids[-1]}")


def _submit(client: Client, act: Act, queue: str) -> str:
    task = client.submit(act.task_type, act.payload, queue=queue, tags=["demo"], **act.options)
    return task.task_id


def _follow(client: Client, acts: Sequence[Act], ids: Sequence[str], show: _Show) -> list[Task]:
    """Look until all have ended or the time is up; cancel what is to be cancelled once it is where it should be."""
    started = time.monotonic()
    to_cancel = {task_id: act for task_id, act in zip(ids, acts, strict=True) if act.cancel}
    tasks = [client.get(task_id) for task_id in ids]
    while True:
        for task in tasks:
            waits = to_cancel.get(task.task_id)
            if waits is not None and (task.status is Status.RUNNING or "delay_seconds" in waits.options):
                del to_cancel[task.task_id]
                if not task.terminal:
                    client.cancel(task.task_id, actor=actor("the demo shows it"))
        show.update(tasks, time.monotonic() - started)
        if all(task.terminal for task in tasks) or time.monotonic() - started > LIMIT_S:
            return tasks
        time.sleep(POLL_S)
        tasks = [task if task.status in TERMINAL else client.get(task.task_id) for task in tasks]


class _Show:
    """On a terminal a picture that is drawn again and again; elsewhere a line for each change."""

    def __init__(self, acts: Sequence[Act], *, quiet: bool) -> None:
        self._acts = acts
        self._quiet = quiet
        self._live = on_terminal() and not quiet and (table_width() or 0) >= NARROWEST
        self._drawn = False
        self._seen: dict[str, str] = {}

    def update(self, tasks: Sequence[Task], elapsed_s: float) -> None:
        if self._quiet:
            return
        pairs = list(zip(self._acts, tasks, strict=True))
        if self._live:
            if self._drawn:
                click.echo(f"\033[{len(pairs)}A", nl=False)
            self._drawn = True
            for act, task in pairs:
                click.echo(f"\033[2K{_line(act, task)}")
            return
        for act, task in pairs:
            state = f"{task.status} {task.attempt}"
            if self._seen.get(task.task_id) != state:
                self._seen[task.task_id] = state
                click.echo(f"{duration(elapsed_s):>6}  {_line(act, task, used=8)}")


def _line(act: Act, task: Task, used: int = 0) -> str:
    """Return a line that the terminal need not wrap. used: columns that are taken already."""
    width = table_width()
    task_type = f"{act.task_type.ljust(19)}  " if width is None or width >= 100 else ""
    status = click.style(task.status.value.ljust(13), fg=STATUS_COLOURS[task.status.value])
    detail = _detail(task)
    if width is not None:
        detail = cut(detail, max(1, width - used - 45 - len(task_type)))
    return f"{status}  {task_type}{act.told.ljust(27)}  {detail}".rstrip()


def _detail(task: Task) -> str:
    if task.status is Status.SUCCEEDED:
        return escape(dumps(task.result))
    if task.status is Status.RUNNING and task.progress:
        return f"{task.progress.get('fraction', 0):.0%} {escape(str(task.progress.get('message', '')))}"
    if task.error and task.status is not Status.RUNNING:
        return f"attempt {task.attempt}: {escape(str(task.error.get('message', '')))}"
    return escape(task.reason or "")
