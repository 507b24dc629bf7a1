"""`flask dtq status`: how the whole of it is doing, in a verdict and three tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from dtq.commands.console import Exit, connect, counted, duration, json_option, print_json, program, redis_now
from dtq.commands.queues import print_queues
from dtq.commands.watching import watch_option
from dtq.commands.workers import print_workers
from dtq.model import WorkerInfo
from dtq.queries import QueueInfo
from dtq.serverinfo import server_info
from dtq.states import Status

if TYPE_CHECKING:
    from dtq.client import Client

FULL_SHARE = 0.9
"""A queue that holds this part of DTQ_MAX_QUEUE_DEPTH will soon refuse tasks."""
LONG_WAIT_S = 300.0


@click.command("status")
@watch_option
@json_option
def status(as_json: bool) -> None:
    """Show how it is going: verdict, totals, queues, workers. Exit status: 1 when something needs attention."""
    client = connect()
    queues, workers = client.queries.queues(), client.queries.workers()
    policy = server_info(client.server, "memory").get("maxmemory_policy", "unknown")
    attention = needs_attention(queues, workers, client.settings.max_queue_depth, policy)
    notes = worth_a_note(queues, workers)
    totals = {one: sum(queue.counts[one] for queue in queues) for one in Status}
    if as_json:
        print_json(
            {
                "verdict": "attention" if attention else "ok",
                "attention": attention,
                "notes": notes,
                "redis": {"server": _kind(client), "url": client.server.safe_url, "eviction_policy": policy},
                "leader": client.queries.leader(),
                "totals": {one.value: number for one, number in totals.items()},
                "queues": [queue.as_json() for queue in queues],
                "workers": [worker.as_json() for worker in workers],
            }
        )
    else:
        _print(client, attention, notes, totals)
        click.echo()
        print_queues(queues)
        click.echo()
        print_workers(workers, redis_now(client))
    if attention:
        raise click.exceptions.Exit(Exit.FAILED)


def needs_attention(
    queues: Sequence[QueueInfo], workers: Sequence[WorkerInfo], max_depth: int, eviction_policy: str
) -> list[str]:
    """Return what somebody should do something about, a line each."""
    found = []
    served = {queue for worker in workers if worker.state == "running" for queue in worker.queues}
    if not workers:
        found.append(f"no worker is running: start one with `{program()} dtq worker run`")
    for queue in queues:
        waiting = queue.counts[Status.QUEUED]
        if workers and waiting and not queue.paused and queue.queue not in served:
            wait = f"{counted(waiting, 'task')} {'waits' if waiting == 1 else 'wait'}"
            found.append(f"{wait} in {queue.queue}, which no running worker serves (DTQ_QUEUES)")
        if queue.depth >= FULL_SHARE * max_depth:
            found.append(f"{queue.queue} holds {counted(queue.depth, 'task')} and refuses more at {max_depth}")
    if eviction_policy not in ("noeviction", "unknown"):
        found.append(f"Redis evicts keys when its memory is full (maxmemory-policy {eviction_policy}): set noeviction")
    return found


def worth_a_note(queues: Sequence[QueueInfo], workers: Sequence[WorkerInfo]) -> list[str]:
    """Return what an operator wants to know, though it may well be meant so."""
    found = []
    for queue in queues:
        if queue.paused:
            by = queue.paused.get("by", "?")
            found.append(f"{queue.queue} is paused by {by}: `{program()} dtq queue resume {queue.queue}` opens it")
        elif (queue.oldest_waiting_s or 0) > LONG_WAIT_S:
            found.append(f"the oldest task in {queue.queue} has waited for {duration(queue.oldest_waiting_s)}")
    dead = sum(queue.counts[Status.DEAD_LETTERED] for queue in queues)
    if dead:
        found.append(f"{counted(dead, 'dead letter')}: `{program()} dtq dlq list`")
    found += [f"worker {one.worker_id} is {one.state}" for one in workers if one.state != "running"]
    found += [
        f"worker {one.worker_id} has written off {counted(one.abandoned_threads, 'thread')}"
        for one in workers
        if one.abandoned_threads
    ]
    return found


def _print(client: Client, attention: Sequence[str], notes: Sequence[str], totals: Mapping[Status, int]) -> None:
    if attention:
        click.secho("needs attention", fg="red", bold=True)
    else:
        click.secho("all is well", fg="green", bold=True)
    for line in attention:
        click.secho(f"  {line}", fg="red")
    for line in notes:
        click.echo(f"  {line}")
    counted: list[Any] = [f"{number} {one.value}" for one, number in totals.items() if number]
    click.echo(f"tasks: {', '.join(counted) or 'none'}")
    click.echo(f"redis: {_kind(client)}, {client.server.safe_url}")


def _kind(client: Client) -> str:
    return "embedded" if client.embedded else client.server.kind
