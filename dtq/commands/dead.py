"""`flask dtq dlq`: tasks that failed for good."""

from __future__ import annotations

import click

from dtq.commands.console import (
    Failure,
    Group,
    actor,
    checked_id,
    checked_queue,
    connect,
    json_option,
    print_json,
)
from dtq.commands.tasks import print_page
from dtq.errors import DtqError
from dtq.queries import MAX_PAGE, TaskFilter
from dtq.states import Status


@click.group("dlq", cls=Group)
def dlq() -> None:
    """Look at dead letters and queue them again."""


@dlq.command("list")
@click.option("--queue", callback=checked_queue, help="Only this queue.")
@click.option("--type", "task_type", help="Only this task type.")
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=20, show_default=True, help="Tasks on a page.")
@click.option("--cursor", help="The page after: next_cursor of the one before.")
@json_option
def list_dead(queue: str | None, task_type: str | None, limit: int, cursor: str | None, as_json: bool) -> None:
    """List dead letters, newest first."""
    print_page(TaskFilter(status=Status.DEAD_LETTERED, queue=queue, task_type=task_type), limit, cursor, as_json)


@dlq.command("requeue")
@click.argument("task_ids", nargs=-1, required=True, metavar="TASK_ID...")
@click.option("--queue", callback=checked_queue, help="Into another queue.")
@click.option("--priority", type=click.IntRange(0, 9), help="With another priority.")
@click.option("--reason", default="", help="Kept in the audit.")
@json_option
@click.pass_context
def requeue(
    ctx: click.Context, task_ids: tuple[str, ...], queue: str | None, priority: int | None, reason: str, as_json: bool
) -> None:
    """Queue dead letters again, their attempts starting anew.

    Exit status: 0 all queued; else that of the first that was not: 3 not found, 4 not dead.
    """
    ids = [checked_id(ctx, ctx.command.params[0], task_id) for task_id in task_ids]
    client = connect()
    queued, refused = [], []
    for task_id in ids:
        try:
            queued.append(client.requeue(task_id, actor=actor(reason), queue=queue, priority=priority))
        except DtqError as error:
            if error.http_status >= 500:  # the next would meet the same
                raise
            refused.append(error)
        else:
            if not as_json:
                click.echo(f"{task_id}  {queued[-1].status}")
    if as_json:
        print_json({"tasks": [one.as_json(brief=True) for one in queued], "errors": [one.message for one in refused]})
    for refusal in refused[1:]:
        Failure.of(refusal).show()
    if refused:
        raise Failure.of(refused[0])
