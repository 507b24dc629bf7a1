"""`flask dtq dlq`: tasks that failed for good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, get_args

import click

from dtq.bulk import Action, BulkWish
from dtq.commands.console import (
    F,
    Failure,
    Group,
    actor,
    checked_id,
    checked_queue,
    connect,
    counted,
    json_option,
    moment_option,
    print_json,
    redis_now,
    seconds,
    when,
)
from dtq.commands.many import SAMPLES, Manner, agree, carry_out, destructive, rate_option, show_samples
from dtq.commands.tables import Column, print_table
from dtq.commands.tasks import print_task
from dtq.commands.watching import watch_option
from dtq.deadletters import DeadFilter, DeadLetter
from dtq.errors import DtqError
from dtq.model import DeadReason, Task
from dtq.queries import MAX_PAGE

DEAD_COLUMNS = (
    Column(name="ID"),
    Column(name="TYPE", cut=True),
    Column(name="QUEUE", cut=True),
    Column(name="CAUSE"),
    Column(name="DEAD", right=True),
    Column(name="TRIES", right=True, optional=True),
    Column(name="ERROR", cut=True, optional=True),
)


@click.group("dlq", cls=Group)
def dlq() -> None:
    """Look at dead letters; queue them again, or give them up."""


def filters(command: F) -> F:
    """Add the options that choose dead letters; `chosen` makes the filter of them."""
    for option in (
        moment_option("--until", "Dead then or before."),
        moment_option("--since", "Dead then or later."),
        click.option("--error", metavar="TEXT", help="With this in the class or the message of the error."),
        click.option("--error-class", metavar="CLASS", help="With an error of this class."),
        click.option("--cause", type=click.Choice(get_args(DeadReason)), help="Dead for this reason."),
        click.option("--type", "task_type", help="Of this task type."),
        click.option("--queue", callback=checked_queue, help="Of this queue."),
    ):
        command = option(command)
    return command


def chosen(cause: str | None, since: datetime | None, until: datetime | None, **others: Any) -> DeadFilter:
    """Return the filter that the options make."""
    return DeadFilter(reason=cause, since=seconds(since), until=seconds(until), **others)


# --- looking ----------------------------------------------------------------------------------------------------------


@dlq.command("list")
@filters
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=20, show_default=True, help="Letters on a page.")
@click.option("--cursor", help="The page after: next_cursor of the one before.")
@watch_option
@json_option
def list_dead(limit: int, cursor: str | None, as_json: bool, **wanted: Any) -> None:
    """List dead letters, newest first."""
    client = connect()
    page = client.queries.dead_letters.page(chosen(**wanted), limit, cursor)
    if as_json:
        print_json({"dead_letters": [one.as_json() for one in page.letters], "next_cursor": page.next_cursor})
        return
    now = redis_now(client)
    print_table(DEAD_COLUMNS, [_row(one, now) for one in page.letters], empty="no dead letters")
    if page.next_cursor:
        click.echo(f"more: --cursor {page.next_cursor}", err=True)


def _row(one: DeadLetter, now: float) -> tuple[object, ...]:
    error = (one.error or {}).get("message") or "-"
    return one.task_id, one.task_type, one.queue, one.reason, when(one.dead_at, now), one.attempts, error


@dlq.command("show")
@click.argument("task_id", callback=checked_id)
@watch_option
@json_option
def show(task_id: str, as_json: bool) -> None:
    """Show a dead letter: its task, and each attempt."""
    client = connect()
    letter, task = client.queries.dead_letters.of_task(task_id), client.get(task_id)
    if as_json:
        print_json({**letter.as_json(), "task": task.as_json()})
    else:
        print_task(task, redis_now(client))


# --- changing ---------------------------------------------------------------------------------------------------------


def _ids(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(checked_id(ctx, parameter, value) for value in values)


task_ids_argument = click.argument("task_ids", nargs=-1, metavar="[TASK_ID]...", callback=_ids)
all_option = click.option("--all", "everything", is_flag=True, help="All dead letters.")


@dlq.command("requeue")
@task_ids_argument
@filters
@all_option
@click.option("--to-queue", callback=checked_queue, help="Into another queue.")
@click.option("--to-priority", "--priority", "to_priority", type=click.IntRange(0, 9), help="With another priority.")
@rate_option
@destructive
@json_option
def requeue(
    task_ids: tuple[str, ...], to_queue: str | None, to_priority: int | None, rate: float | None, **options: Any
) -> None:
    """Queue dead letters again, their attempts starting anew: those named, or all that the options choose.

    Exit status: 0 all queued; of those named, that of the first that was not: 3 not found, 4 not dead.
    """
    manner, wanted = _read(task_ids, options)
    client = connect()
    if wanted is not None:
        wish = BulkWish(action="dlq.requeue", wanted=wanted, to_queue=to_queue, to_priority=to_priority, rate=rate)
        carry_out(client, wish, "queue", "dead letter", manner)
        return
    if manner.dry_run:
        _show_named("queue", task_ids, manner)
        return
    who = actor(manner.reason)
    _each(task_ids, manner, lambda task_id: client.requeue(task_id, actor=who, queue=to_queue, priority=to_priority))


@dlq.command("discard")
@task_ids_argument
@filters
@all_option
@rate_option
@destructive
@json_option
def discard(task_ids: tuple[str, ...], rate: float | None, **options: Any) -> None:
    """Give dead letters up: those named, or all that the options choose. Their tasks stay for the retention, failed.

    Exit status: 0 all given up; of those named, that of the first that was not: 3 not found, 4 not dead.
    """
    manner, wanted = _read(task_ids, options)
    client = connect()
    if wanted is not None:
        carry_out(client, BulkWish(action="dlq.discard", wanted=wanted, rate=rate), "discard", "dead letter", manner)
        return
    if manner.dry_run:
        _show_named("discard", task_ids, manner)
        return
    total, samples, _ = client.preview(BulkWish(action="dlq.discard", task_ids=task_ids), SAMPLES)
    agree(f"discard {counted(total, 'dead letter')}", total, samples, manner)
    who = actor(manner.reason)
    _each(task_ids, manner, lambda task_id: client.discard(task_id, actor=who))


@dlq.command("purge")
@filters
@rate_option
@destructive
@json_option
def purge(rate: float | None, yes: bool, dry_run: bool, reason: str, as_json: bool, **wanted: Any) -> None:
    """Give all dead letters up, or all that the options choose. Their tasks stay for the retention, failed."""
    action: Action = "dlq.purge"
    manner = Manner(yes=yes, dry_run=dry_run, reason=reason, as_json=as_json)
    carry_out(connect(), BulkWish(action=action, wanted=chosen(**wanted), rate=rate), "discard", "dead letter", manner)


def _read(task_ids: Sequence[str], options: dict[str, Any]) -> tuple[Manner, DeadFilter | None]:
    """Return how to go about it, and the filter; None where tasks are named."""
    manner = Manner(**{name: options.pop(name) for name in ("yes", "dry_run", "reason", "as_json")})
    everything = options.pop("everything")
    wanted = chosen(**options)
    if sum((bool(task_ids), everything, not wanted.everything)) != 1:
        raise click.UsageError("name tasks, or choose by options such as --queue and --error, or say --all")
    return manner, None if task_ids else wanted


def _show_named(verb: str, task_ids: Sequence[str], manner: Manner) -> None:
    client = connect()
    total, samples, _ = client.preview(BulkWish(action="dlq.requeue", task_ids=task_ids), SAMPLES)
    if manner.as_json:
        print_json({"dry_run": True, "total": total, "samples": samples})
    else:
        show_samples(f"would {verb} {counted(total, 'dead letter')}", total, samples)


def _each(task_ids: Sequence[str], manner: Manner, change: Callable[[str], Task]) -> None:
    """Do it to one after the other; end as the first that could not be changed."""
    changed, refused = [], []
    for task_id in task_ids:
        try:
            changed.append(change(task_id))
        except DtqError as error:
            if error.http_status >= 500:  # the next would meet the same
                raise
            refused.append(error)
        else:
            if not manner.as_json:
                click.echo(f"{task_id}  {changed[-1].status}{' (discarded)' if changed[-1].discarded else ''}")
    if manner.as_json:
        print_json({"tasks": [one.as_json(brief=True) for one in changed], "errors": [one.message for one in refused]})
    for refusal in refused[1:]:
        Failure.of(refusal).show()
    if refused:
        raise Failure.of(refused[0])
