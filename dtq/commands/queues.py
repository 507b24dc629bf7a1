"""`flask dtq queue`: what waits where, and holding it back."""

from __future__ import annotations

from typing import Any

import click

from dtq.bulk import BulkWish
from dtq.commands.console import (
    Exit,
    Failure,
    Group,
    actor,
    checked_queue,
    connect,
    duration,
    json_option,
    print_json,
    redis_now,
    when,
)
from dtq.commands.many import Manner, carry_out, destructive
from dtq.commands.tables import Column, print_pairs, print_table
from dtq.commands.watching import watch_option
from dtq.queries import Queries, QueueInfo
from dtq.states import BANDS, TERMINAL, Status

QUEUE_COLUMNS = (
    Column(name="QUEUE", cut=True),
    Column(name="STATE"),
    Column(name="WAITING", right=True),
    Column(name="OLDEST", right=True, optional=True),
    Column(name="RUNNING", right=True, optional=True),
    Column(name="SCHEDULED", right=True, optional=True),
    Column(name="DONE", right=True, optional=True),
    Column(name="DEAD", right=True, optional=True),
)


@click.group("queue", cls=Group)
def queue() -> None:
    """Look at queues; pause, resume and purge them."""


@queue.command("list")
@watch_option
@json_option
def list_queues(as_json: bool) -> None:
    """List the queues with their counts."""
    found = connect().queries.queues()
    if as_json:
        print_json({"queues": [one.as_json() for one in found]})
    else:
        print_queues(found)


def print_queues(found: list[QueueInfo]) -> None:
    """Write a table of queues."""
    print_table(QUEUE_COLUMNS, [_row(one) for one in found], empty="no queues: nothing was submitted yet")


def _row(one: QueueInfo) -> tuple[object, ...]:
    counts = one.counts
    return (
        one.queue,
        "paused" if one.paused else "open",
        counts[Status.QUEUED],
        duration(one.oldest_waiting_s),
        counts[Status.RUNNING],
        counts[Status.PENDING] + counts[Status.RETRYING],
        sum(counts[status] for status in TERMINAL) - counts[Status.DEAD_LETTERED],
        counts[Status.DEAD_LETTERED],
    )


@queue.command("stats")
@click.argument("name", required=False, callback=checked_queue)
@watch_option
@json_option
def stats(name: str | None, as_json: bool) -> None:
    """Show a queue, or each, in full: by status and by priority. Exit status: 0, 3 there is no such queue."""
    client = connect()
    found = client.queries.queues() if name is None else [_existing(client.queries, name)]
    if as_json:
        print_json(found[0].as_json() if name is not None else {"queues": [one.as_json() for one in found]})
        return
    now = redis_now(client)
    for number, one in enumerate(found):
        if number:
            click.echo()
        _print_stats(one, now)


def _existing(queries: Queries, name: str) -> QueueInfo:
    found = queries.queue(name)
    if not (found.paused or _is_used(queries, found)):
        raise Failure(f"there is no queue {name}: it holds no tasks, and no worker serves it", Exit.NOT_FOUND)
    return found


def _is_used(queries: Queries, found: QueueInfo) -> bool:
    return (
        any(found.counts.values())
        or found.queue in queries.queue_names()
        or any(found.queue in worker.queues for worker in queries.workers())
    )


def _print_stats(one: QueueInfo, now: float) -> None:
    pause = one.paused or {}
    by_status = [(status.value, one.counts[status] or None) for status in Status]
    by_priority = [
        (f"priority {band}", f"{one.waiting_by_priority[band]} waiting, {_age(one, band)}")
        for band in BANDS
        if one.waiting_by_priority[band]
    ]
    print_pairs(
        [
            ("queue", one.queue),
            ("paused", _pause_text(pause, now) if pause else None),
            ("depth", str(one.depth)),
            *by_status,
            *by_priority,
        ]
    )


def _age(one: QueueInfo, band: int) -> str:
    return f"the oldest for {duration(one.oldest_waiting_by_priority_s[band])}"


def _pause_text(pause: Any, now: float) -> str:
    reason = f": {pause['reason']}" if pause.get("reason") else ""
    return f"{when(pause.get('at'), now)} by {pause.get('by', '?')}{reason}"


@queue.command("pause")
@click.argument("name", callback=checked_queue)
@click.option("--reason", default="", help="Shown with the pause.")
@json_option
def pause(name: str, reason: str, as_json: bool) -> None:
    """Let nothing more of a queue start; what runs goes on."""
    client = connect()
    changed = client.pause(name, actor=actor(reason))
    _tell(name, True, changed, as_json)
    if not _is_used(client.queries, client.queries.queue(name)):
        told = f"note: {name} holds no tasks and no worker serves it; the pause waits for it. Is the name right?"
        click.echo(told, err=True)


@queue.command("resume")
@click.argument("name", callback=checked_queue)
@click.option("--reason", default="", help="Kept in the audit.")
@json_option
def resume(name: str, reason: str, as_json: bool) -> None:
    """Let a paused queue go on."""
    changed = connect().resume(name, actor=actor(reason))
    _tell(name, False, changed, as_json)


@queue.command("purge")
@click.argument("name", callback=checked_queue)
@destructive
@json_option
def purge(name: str, **manner: Any) -> None:
    """Cancel all that waits in a queue, or for it; what runs goes on, dead letters stay."""
    carry_out(connect(), BulkWish(action="queue.purge", queue=name), "cancel", "waiting task", Manner(**manner))


def _tell(name: str, paused: bool, changed: bool, as_json: bool) -> None:
    if as_json:
        print_json({"queue": name, "paused": paused, "changed": changed})
    else:
        already = "" if changed else " already"
        click.echo(f"{name} is{already} {'paused' if paused else 'open'}")
