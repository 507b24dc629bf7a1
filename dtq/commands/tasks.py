"""`flask dtq task`: submit, look, wait, cancel, and run a handler without any queue."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import click

from dtq.bulk import BulkWish
from dtq.commands.console import (
    Exit,
    F,
    Failure,
    Group,
    Seconds,
    actor,
    checked_id,
    checked_queue,
    connect,
    counted,
    duration,
    json_option,
    moment,
    print_json,
    program,
    redis_now,
    when,
)
from dtq.commands.many import Manner, carry_out, destructive, rate_option, show_samples
from dtq.commands.tables import Column, print_pairs, print_table
from dtq.commands.watching import watch_option
from dtq.errors import InvalidTask
from dtq.log import escape
from dtq.model import Task
from dtq.queries import MAX_PAGE
from dtq.states import Status
from dtq.strictjson import load_json
from dtq.taskfilter import TaskFilter
from dtq.taskquery import parse

TASK_COLUMNS = (
    Column(name="ID"),
    Column(name="STATUS", status=True),
    Column(name="TYPE", cut=True),
    Column(name="QUEUE", cut=True),
    Column(name="CREATED", right=True, optional=True),
    Column(name="P", right=True, optional=True),
    Column(name="TRY", right=True, optional=True),
    Column(name="ERROR", cut=True, optional=True),
)


@click.group("task", cls=Group)
def task() -> None:
    """Submit tasks and look at them."""


# --- submitting -------------------------------------------------------------------------------------------------------


@task.command("submit")
@click.argument("task_type")
@click.argument("payload", default="{}")
@click.option("--payload", "payload_option", metavar="JSON", help="The payload, instead of the argument.")
@click.option("--queue", help="Default: default.")
@click.option("--priority", type=int, help="0 to 9, the most urgent. Default: 5.")
@click.option("--max-attempts", type=int, help="Default: the handler's, else 5.")
@click.option("--timeout-ms", type=int, help="Time limit of an attempt.")
@click.option("--delay", "delay_seconds", type=Seconds(0), metavar="SECONDS", help="Do not start before.")
@click.option("--run-at", metavar="TIME", help="Do not start before: RFC 3339 with an offset.")
@click.option("--idempotency-key", metavar="KEY", help="Submit once, however often this is repeated.")
@click.option("--metadata", metavar="JSON", help="An object; ttl_seconds in it is understood.")
@click.option("--tag", "tags", multiple=True, help="May be given several times.")
@json_option
def submit(task_type: str, payload: str, payload_option: str | None, as_json: bool, **given: Any) -> None:
    """Submit a task. PAYLOAD is a JSON object; @FILE reads it from a file, - from stdin."""
    if payload_option is not None and payload != "{}":
        raise click.UsageError("give the payload once: as the argument or with --payload")
    options = {name: value for name, value in given.items() if value not in (None, ())}
    body = read_json(payload if payload_option is None else payload_option, "PAYLOAD")
    if "metadata" in options:
        options["metadata"] = read_json(options["metadata"], "--metadata")
    if "tags" in options:
        options["tags"] = list(options["tags"])
    if "run_at" in options:
        options["run_at"] = moment(options["run_at"])
    accepted = connect().submit(task_type, body, **options)
    if as_json:
        print_json(accepted.as_json())
        return
    for warning in accepted.warnings:
        click.echo(f"Note: {warning}", err=True)
    click.echo(f"{accepted.task_id}  {accepted.status}{'  (was submitted before)' if accepted.duplicate else ''}")


def read_json(text: str, name: str) -> Any:
    """Read JSON by the rules of the API: from the text itself, from `@FILE`, or from stdin for `-`."""
    try:
        if text == "-":
            body = sys.stdin.buffer.read()
        elif text.startswith("@"):
            with open(text[1:], "rb") as file:
                body = file.read()
        else:
            body = text.encode("utf-8", "surrogateescape")
        return load_json(body)
    except OSError as error:
        raise Failure(f"{name}: {text[1:]} cannot be read: {error.strerror}", Exit.USAGE) from None
    except InvalidTask as error:
        raise Failure(f"{name}: {error.message}", Exit.USAGE) from None


# --- looking ----------------------------------------------------------------------------------------------------------


def _point_to_wait(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(f"get shows a task as it is now; to wait for its end: {program()} dtq task wait TASK_ID")


@task.command("get")
@click.argument("task_id", callback=checked_id)
@click.option("--traceback", is_flag=True, help="Also where each attempt failed.")
@click.option("--wait", is_flag=False, flag_value="", hidden=True, is_eager=True, expose_value=False,
              callback=_point_to_wait)  # fmt: skip
@watch_option
@json_option
def get(task_id: str, traceback: bool, as_json: bool) -> None:
    """Show a task: what it is, what became of it, each attempt. --json has everything, tracebacks too."""
    client = connect()
    found = client.get(task_id)
    if as_json:
        print_json(found.as_json())
        return
    print_task(found, redis_now(client), hint=not traceback)
    if traceback:
        _print_tracebacks(found)


def _print_tracebacks(shown: Task) -> None:
    stored = [attempt for attempt in shown.attempts if attempt.traceback]
    for attempt in stored:
        click.echo()
        click.secho(f"attempt {attempt.number}, {attempt.outcome}:", bold=True)
        for line in (attempt.traceback or "").splitlines():
            click.echo(f"  {escape(line)}".rstrip())
    if not stored:
        click.echo("no traceback is stored", err=True)


def print_task(shown: Task, now: float, *, hint: bool = True) -> None:
    """Write a task for people. hint: whether to say, on stderr, how to see its tracebacks when it has some."""
    progress = shown.progress or {}
    error = shown.error or {}
    print_pairs(
        [
            ("id", shown.task_id),
            ("type", shown.task_type),
            ("status", shown.status.value),
            ("reason", shown.reason),
            ("cancel", "requested" if shown.cancel_requested and not shown.terminal else None),
            ("queue", shown.queue),
            ("priority", shown.priority),
            ("attempt", f"{shown.attempt} of {shown.max_attempts}" if shown.max_attempts else shown.attempt),
            ("crashes", shown.crashes or None),
            ("requeued", shown.requeued or None),
            ("created", when(shown.created_at, now)),
            ("available", when(shown.available_at, now) if (shown.available_at or 0) > now else None),
            ("started", when(shown.started_at, now) if shown.started_at else None),
            ("finished", when(shown.finished_at, now) if shown.finished_at else None),
            ("worker", shown.worker_id),
            ("progress", f"{progress.get('fraction', 0):.0%} {progress.get('message', '')}" if progress else None),
            ("tags", ", ".join(shown.tags)),
            ("key", shown.idempotency_key),
            ("metadata", json.dumps(shown.metadata, ensure_ascii=False) if shown.metadata else None),
            ("payload", json.dumps(shown.payload, ensure_ascii=False)),
            ("error", ": ".join(str(error[name]) for name in ("class", "message") if error.get(name))),
            ("result", _result_text(shown)),
        ]
    )
    if len(shown.attempts) > 1 or shown.error:
        click.echo()
        print_table(
            (
                Column(name="TRY", right=True),
                Column(name="OUTCOME"),
                Column(name="STARTED", right=True),
                Column(name="TOOK", right=True),
                Column(name="RETRY AFTER", right=True, optional=True),
                Column(name="ERROR", cut=True),
                Column(name="WORKER", cut=True, optional=True),
            ),
            [
                (
                    attempt.number,
                    attempt.outcome.value,
                    when(attempt.started_at, now),
                    duration(None if attempt.duration_ms is None else attempt.duration_ms / 1000),
                    duration(None if attempt.retry_delay_ms is None else attempt.retry_delay_ms / 1000),
                    ": ".join(text for text in (attempt.error_class, attempt.message) if text) or "-",
                    attempt.worker_id or "-",
                )
                for attempt in shown.attempts
            ],
            empty="no attempt has ended yet",
        )
    if hint and any(attempt.traceback for attempt in shown.attempts):
        click.echo(f"where it failed: {program()} dtq get {shown.task_id} --traceback", err=True)


def _result_text(shown: Task) -> str | None:
    if shown.result_state == "stored":
        return json.dumps(shown.result, ensure_ascii=False)
    return None if shown.result_state == "none" else f"({shown.result_state.replace('_', ' ')})"


def task_filters(command: F) -> F:
    """Add the options that choose tasks; `chosen_tasks` makes the filter of them."""
    for option in (
        click.option("--tag", help="Only with this tag."),
        click.option("--type", "task_type", help="Only this task type."),
        click.option("--status", type=click.Choice([status.value for status in Status]), help="Only this status."),
        click.option("--queue", callback=checked_queue, help="Only this queue."),
        click.option("--query", default="", help="A query, such as: status:dead_lettered error:refused age>10m."),
    ):
        command = option(command)
    return command


def chosen_tasks(query: str, status: str | None, **wanted: Any) -> TaskFilter:
    """Return the filter that the options make. The query is that of the dashboard."""
    asked = parse(query)
    if asked.problems:
        raise click.UsageError("\n".join(f"{one.text}: {one.problem}" for one in asked.problems))
    given = {name: value for name, value in wanted.items() if value is not None}
    if status is not None:
        given["status"] = Status(status)
    now = redis_now(connect()) if query else 0.0
    return replace(TaskFilter.of(asked, now), **given)


@task.command("list")
@task_filters
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=20, show_default=True, help="Tasks on a page.")
@click.option("--cursor", help="The page after: next_cursor of the one before.")
@watch_option
@json_option
def list_tasks(limit: int, cursor: str | None, as_json: bool, **wanted: Any) -> None:
    """List tasks, newest first. The query is that of the dashboard (docs/dashboard.md)."""
    print_page(chosen_tasks(**wanted), limit, cursor, as_json)


def print_page(wanted: TaskFilter, limit: int, cursor: str | None, as_json: bool) -> None:
    """Write a page of tasks."""
    client = connect()
    page = client.tasks(wanted, limit, cursor)
    if as_json:
        print_json({"tasks": [one.as_json(brief=True) for one in page.tasks], "next_cursor": page.next_cursor})
        return
    now = redis_now(client)
    print_table(TASK_COLUMNS, [_row(one, now) for one in page.tasks], empty="no tasks")
    if page.next_cursor:
        click.echo(f"more: --cursor {page.next_cursor}", err=True)


def _row(one: Task, now: float) -> tuple[object, ...]:
    error = (one.error or {}).get("message") or one.reason or "-"
    tried = f"{one.attempt}/{one.max_attempts or '?'}"
    return (
        one.task_id, one.status.value, one.task_type, one.queue, when(one.created_at, now), one.priority, tried, error
    )  # fmt: skip


@task.command("wait")
@click.argument("task_id", callback=checked_id)
@click.option(
    "--timeout", type=Seconds(0, 86_400), default=60.0, show_default=True, metavar="SECONDS", help="How long."
)
@json_option
def wait(task_id: str, timeout: float, as_json: bool) -> None:
    """Wait until a task has ended. Exit status: 0 it succeeded, 1 it ended otherwise, 75 not yet."""
    client = connect()
    found = client.wait(task_id, timeout)
    if as_json:
        print_json(found.as_json())
    else:
        print_task(found, redis_now(client))
    if not found.terminal:
        raise Failure(f"task {task_id} is still {found.status} after {timeout:g} s", Exit.GAVE_UP)
    if found.status is not Status.SUCCEEDED:
        raise Failure(f"task {task_id} {_ended(found)}", Exit.FAILED)


@task.command("result")
@click.argument("task_id", callback=checked_id)
@json_option
def result(task_id: str, as_json: bool) -> None:
    """Print what a task returned, as JSON. Exit status: 1 it failed or was too large to keep, 3 gone, 4 not ended."""
    found = connect().get(task_id)
    if not found.terminal:
        raise Failure(f"task {task_id} is {found.status}: it has no result yet", Exit.WRONG_STATE)
    if found.status is not Status.SUCCEEDED:
        raise Failure(f"task {task_id} {_ended(found)}: it has no result", Exit.FAILED)
    if found.result_state == "expired":
        raise Failure(f"the result of task {task_id} was kept for DTQ_RESULT_RETENTION_S and is gone", Exit.NOT_FOUND)
    if found.result_state == "too_large":
        raise Failure(
            f"task {task_id} succeeded, but what it returned was larger than DTQ_RESULT_MAX_BYTES and was not kept",
            Exit.FAILED,
        )
    print_json({"task_id": task_id, "result": found.result} if as_json else found.result)


def _ended(found: Task) -> str:
    message = (found.error or {}).get("message") or found.reason
    status = "is a dead letter" if found.status is Status.DEAD_LETTERED else f"is {found.status}"
    return f"{status} ({message})" if message else status


# --- changing ---------------------------------------------------------------------------------------------------------


def _id_or_none(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    return None if value is None else checked_id(ctx, parameter, value)


@task.command("cancel")
@click.argument("task_id", required=False, callback=_id_or_none)
@task_filters
@click.option("--all", "everything", is_flag=True, help="All tasks that have not ended.")
@rate_option
@destructive
@json_option
def cancel(task_id: str | None, everything: bool, rate: float | None, **options: Any) -> None:
    """Cancel a task, or all that the options choose: at once if it waits; if it runs, its worker is told."""
    manner = Manner(**{name: options.pop(name) for name in ("yes", "dry_run", "reason", "as_json")})
    given = any(value for value in options.values())
    if sum((task_id is not None, everything, given)) != 1:
        raise click.UsageError("name a task, or choose by options such as --query and --queue, or say --all")
    if task_id is None:
        wish = BulkWish(action="task.cancel", tasks=chosen_tasks(**options), rate=rate)
        carry_out(connect(), wish, "cancel", "task", manner)
    elif manner.dry_run:
        _show_one(task_id, manner)
    else:
        _cancel_one(task_id, manner)


def _show_one(task_id: str, manner: Manner) -> None:
    found = connect().get(task_id)
    total = 0 if found.terminal else 1
    samples = [found.as_json(brief=True)][:total]
    if manner.as_json:
        print_json({"dry_run": True, "total": total, "samples": samples})
    else:
        show_samples(f"would cancel {counted(total, 'task')}", total, samples)


def _cancel_one(task_id: str, manner: Manner) -> None:
    as_json = manner.as_json
    found = connect().cancel(task_id, actor=actor(manner.reason))
    if as_json:
        print_json(found.as_json())
    elif found.terminal:
        click.echo(f"{task_id}  {found.status}")
    else:
        click.echo(f"{task_id}  {found.status}, its worker is told to stop it")


@task.command("run")
@click.argument("task_type")
@click.argument("payload", default="{}")
@click.option("--tasks", metavar="MODULE", help="Where the handler is. Default: DTQ_TASKS.")
@click.option("--traceback", is_flag=True, help="Show where it failed.")
@json_option
def run(task_type: str, payload: str, tasks: str | None, traceback: bool, as_json: bool) -> None:
    """Run a handler once, in this process: no queue, no retries, no time limit. Prints what it returns."""
    from dtq.commands.local import run_handler  # needs what no other command does

    outcome = run_handler(task_type, read_json(payload, "PAYLOAD"), tasks)
    if outcome.error is None:
        print_json(outcome.as_json() if as_json else outcome.result)
        return
    if as_json:
        print_json(outcome.as_json())
    if traceback:
        click.echo(outcome.traceback, err=True, nl=False)
    raise Failure(f"{task_type}: {outcome.error}", Exit.FAILED)
