"""`flask dtq bulk`: what is done to many tasks at once, and goes on by itself."""

from __future__ import annotations

import click

from dtq.bulk import BulkJob
from dtq.commands.console import (
    Exit,
    Failure,
    Group,
    actor,
    checked_id,
    connect,
    json_option,
    print_json,
    redis_now,
    when,
)
from dtq.commands.many import follow, tell
from dtq.commands.tables import Column, print_pairs, print_table
from dtq.commands.watching import watch_option
from dtq.limits import BULK_LISTED
from dtq.model import dumps

BULK_COLUMNS = (
    Column(name="ID"),
    Column(name="ACTION"),
    Column(name="STATE"),
    Column(name="DONE", right=True),
    Column(name="OF", right=True),
    Column(name="ACTOR", cut=True, optional=True),
    Column(name="BEGUN", right=True, optional=True),
)


@click.group("bulk", cls=Group)
def bulk() -> None:
    """Look at bulk jobs, carry them on, abort them."""


@bulk.command("list")
@click.option("--limit", type=click.IntRange(1, BULK_LISTED), default=20, show_default=True, help="Jobs to show.")
@watch_option
@json_option
def list_jobs(limit: int, as_json: bool) -> None:
    """List the last bulk jobs, newest first."""
    client = connect()
    found = client.bulk.recent(limit)
    if as_json:
        print_json({"jobs": [job.as_json() for job in found]})
        return
    now = redis_now(client)
    rows = [
        (job.bulk_id, job.wish.action, _state(job), job.done, job.total, job.actor.name, when(job.created_at, now))
        for job in found
    ]
    print_table(BULK_COLUMNS, rows, empty="no bulk jobs")


@bulk.command("show")
@click.argument("bulk_id", callback=checked_id)
@watch_option
@json_option
def show(bulk_id: str, as_json: bool) -> None:
    """Show what a bulk job is about and how far it is."""
    client = connect()
    job = client.bulk.get(bulk_id)
    if as_json:
        print_json(job.as_json())
        return
    wish, now = job.wish, redis_now(client)
    print_pairs(
        [
            ("id", job.bulk_id),
            ("action", wish.action),
            ("state", _state(job)),
            ("done", f"{job.done} of {'' if job.total_exact else 'at least '}{job.total}"),
            ("skipped", job.skipped or None),
            ("failed", job.failed or None),
            ("queue", wish.queue),
            ("filter", dumps(wish.filter_as_json()) if wish.filter_as_json() is not None else None),
            ("to queue", wish.to_queue),
            ("to priority", wish.to_priority),
            ("rate", wish.rate),
            ("actor", job.actor.name),
            ("reason", job.actor.reason),
            ("begun", when(job.created_at, now)),
            ("ended", when(job.ended_at, now) if job.ended_at else None),
        ]
    )


@bulk.command("resume")
@click.argument("bulk_id", callback=checked_id)
@json_option
def resume(bulk_id: str, as_json: bool) -> None:
    """Carry a bulk job on whose process has ended; one that another process does is watched."""
    client = connect()
    job = client.bulk.get(bulk_id)
    if job.ended:
        raise Failure(f"bulk job {bulk_id} has ended already: {job.state}", Exit.WRONG_STATE)
    tell(follow(client, job), as_json)


@bulk.command("abort")
@click.argument("bulk_id", callback=checked_id)
@click.option("--reason", default="", help="Kept in the audit.")
@json_option
def abort(bulk_id: str, reason: str, as_json: bool) -> None:
    """Let a bulk job go no further; what it has done stays done."""
    job = connect().abort_bulk(bulk_id, actor=actor(reason))
    if as_json:
        print_json(job.as_json())
    else:
        click.echo(f"{bulk_id}  aborted after {job.done} of {job.total}")


def _state(job: BulkJob) -> str:
    return "waiting" if job.state == "running" and not job.held else job.state
