"""`flask dtq audit`: who did what."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from dtq.audit import AuditEntry, AuditFilter
from dtq.commands.console import connect, json_option, moment_option, print_json, redis_now, seconds, when
from dtq.commands.tables import Column, print_table
from dtq.commands.watching import watch_option
from dtq.queries import MAX_PAGE

AUDIT_COLUMNS = (
    Column(name="TIME"),
    Column(name="ACTOR", cut=True),
    Column(name="ACTION"),
    Column(name="TARGET", cut=True),
    Column(name="COUNT", right=True, optional=True),
    Column(name="REASON", cut=True, optional=True),
    Column(name="DETAIL", cut=True, optional=True),
)


@click.command("audit")
@click.option("--actor", help="Only what this one did, such as cli:ann.")
@click.option("--action", help="Only this, such as queue.pause or task.cancel.")
@click.option("--target", help="Only what was done to this task, queue, worker or bulk job.")
@moment_option("--since", "Not before.")
@moment_option("--until", "Not after.")
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=20, show_default=True, help="Entries on a page.")
@click.option("--cursor", help="The page after: next_cursor of the one before.")
@watch_option
@json_option
def audit(
    since: datetime | None, until: datetime | None, limit: int, cursor: str | None, as_json: bool, **wanted: Any
) -> None:
    """List what operators did, newest first."""
    client = connect()
    page = client.queries.audit(AuditFilter(since=seconds(since), until=seconds(until), **wanted), limit, cursor)
    if as_json:
        print_json({"entries": [entry.as_json() for entry in page.entries], "next_cursor": page.next_cursor})
        return
    now = redis_now(client)
    print_table(AUDIT_COLUMNS, [_row(entry, now) for entry in page.entries], empty="nothing was done")
    if page.next_cursor:
        click.echo(f"more: --cursor {page.next_cursor}", err=True)


def _row(entry: AuditEntry, now: float) -> tuple[object, ...]:
    return (
        when(entry.at, now),
        entry.actor,
        entry.action,
        entry.target,
        entry.count,
        entry.reason or "-",
        entry.detail or "-",
    )
