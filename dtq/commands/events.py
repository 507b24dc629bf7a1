"""`flask dtq events`: what has happened, and what happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from dtq.commands.console import checked_id, checked_queue, connect, json_option, on_terminal
from dtq.commands.tables import GAP, STATUS_COLOURS
from dtq.events import EVENT_TYPES, Dropped, Event, EventFilter, EventId, EventReader, Gap, Item
from dtq.events.history import MAX_PAGE
from dtq.log import escape

SHOWN = 20
"""Events that are shown first where nothing else was asked for."""
LOOK_S = 1.0
_TYPE_WIDTH = max(map(len, EVENT_TYPES))


def _types(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> frozenset[str] | None:
    """Read types: several options, or several with commas; in any case, and with or without `TASK_`."""
    names = [name.strip().upper() for text in given for name in text.split(",") if name.strip()]
    types = frozenset(name if name in EVENT_TYPES else f"TASK_{name}" for name in names)
    unknown = sorted(types - EVENT_TYPES)
    if unknown:
        name = escape(unknown[0].removeprefix("TASK_"))[:80]
        raise click.BadParameter(f"there is no type {name}; they are {', '.join(sorted(EVENT_TYPES))}")
    return types or None


def _place(ctx: click.Context, parameter: click.Parameter, text: str | None) -> EventId | None:
    try:
        return None if text is None else EventId.parse(text)
    except ValueError:
        raise click.BadParameter("not the id of an event; 0 is the oldest that is held") from None


def _task_id(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    return None if text is None else checked_id(ctx, parameter, text)


@click.command("events")
@click.option("--queue", callback=checked_queue, help="Only of this queue.")
@click.option("--type", "types", multiple=True, metavar="TYPE", callback=_types, help="Only of this type; repeatable.")
@click.option("--task", "--task-id", "task_id", metavar="TASK_ID", callback=_task_id, help="Only of this task.")
@click.option("--since", metavar="ID", callback=_place, help="Begin after this event; 0: with the oldest that is held.")
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", help=f"End after so many. Default without --watch: {SHOWN}."
)
@click.option("--watch/--no-watch", default=None, help="Go on with what happens, until Ctrl-C. Default on a terminal.")
@json_option
def events(
    types: frozenset[str] | None,
    since: EventId | None,
    limit: int | None,
    watch: bool | None,
    as_json: bool,
    **wanted: Any,
) -> None:
    """Show events, oldest first: the newest, or those since one; on a terminal also what happens from now on.

    --json prints one object a line, as they come.
    """
    reader = connect().events
    filtered = EventFilter(types=types, **wanted)
    follow = on_terminal() if watch is None else watch
    found = _followed(reader, filtered, since, limit) if follow else _held(reader, filtered, since, limit or SHOWN)
    left = limit
    try:
        for item in found:
            _show(item, as_json)
            left = None if left is None else left - isinstance(item, Event)
            if left == 0:
                break
    except KeyboardInterrupt:  # the way to end it
        click.echo(err=True)


def _held(reader: EventReader, wanted: EventFilter, since: EventId | None, limit: int) -> Iterator[Item]:
    """Yield what the stream holds."""
    if since is None:
        yield from reader.history.newest(wanted, min(limit, MAX_PAGE)).events
        return
    more = True
    while more:
        page = reader.history.after(since, wanted, min(limit, MAX_PAGE))
        if page.gap:
            yield Gap()
        yield from page.events
        since, more = page.last, page.more


def _followed(reader: EventReader, wanted: EventFilter, since: EventId | None, limit: int | None) -> Iterator[Item]:
    """Yield what the stream holds, and then what happens."""
    if since is None:
        page = reader.history.newest(wanted, min(limit or SHOWN, SHOWN))
        yield from page.events
        since = page.last
    with reader.subscribe(wanted, since=since) as subscription:
        while True:
            yield from subscription.get(LOOK_S)


def _show(item: Item, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(item.as_json(), ensure_ascii=False))
    elif isinstance(item, Event):
        click.echo(_line(item))
    elif isinstance(item, Gap):
        click.echo("events are missing here: they are no longer held", err=True)
    elif isinstance(item, Dropped):
        click.echo(f"{item.count} events are missing here: this terminal was too slow", err=True)


def _line(event: Event) -> str:
    shown = event.as_json()
    detail = ", ".join(f"{name} {value}" for name, value in (shown["detail"] or {}).items() if value != "")
    attempt = f"attempt {event.attempt}" if event.attempt else ""
    rest = [event.task_id, event.task_type, event.queue, attempt, event.worker_id, detail]
    time = shown["time"][11:23] if on_terminal() else shown["time"]
    text = GAP.join([time, event.type.ljust(_TYPE_WIDTH), *(escape(part) for part in rest if part)]).rstrip()
    return text.replace(event.type, click.style(event.type, fg=_colour(event.type)), 1)


def _colour(kind: str) -> str | None:
    name = kind.removeprefix("TASK_").lower()
    return STATUS_COLOURS.get({"started": "running", "retry_scheduled": "retrying"}.get(name, name))
