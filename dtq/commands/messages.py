"""`flask dtq mq`: the message queues beside the engine."""

from __future__ import annotations

import sys
from typing import Any

import click

from dtq.commands.console import (
    Exit,
    Failure,
    Group,
    Seconds,
    actor,
    checked_queue,
    connect,
    counted,
    duration,
    json_option,
    print_json,
    redis_now,
    when,
)
from dtq.commands.many import SAMPLES, Manner, ask, destructive, show_lines
from dtq.commands.tables import Column, print_pairs, print_table
from dtq.commands.watching import watch_option
from dtq.keys import TOPIC_NAME
from dtq.mq.model import COUNTED, QueueStats, Stored, TopicStats, checked_key
from dtq.mq.queries import MOST_PEEKED, MessageQueries

QUEUE_COLUMNS = (
    Column(name="QUEUE", cut=True),
    Column(name="WAITING", right=True),
    Column(name="IN FLIGHT", right=True),
    Column(name="DELAYED", right=True),
    Column(name="OLDEST", right=True),
    Column(name="TOPICS", right=True, optional=True),
    Column(name="CONSUMERS", right=True, optional=True),
)
TOPIC_COLUMNS = (
    Column(name="TOPIC", cut=True),
    Column(name="STATE"),
    Column(name="WAITING", right=True),
    Column(name="IN FLIGHT", right=True),
    Column(name="DELAYED", right=True),
    Column(name="OLDEST", right=True),
)
MESSAGE_COLUMNS = (
    Column(name="KEY", cut=True),
    Column(name="STATE"),
    Column(name="PUT"),
    Column(name="DELIVERIES", right=True, optional=True),
    Column(name="DUE", optional=True),
    Column(name="CONSUMER", cut=True, optional=True),
    Column(name="REASON", cut=True, optional=True),
    Column(name="DATA", cut=True),
)
SHOWN_BYTES = 200


def _checked_topic(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not TOPIC_NAME.fullmatch(value):
        raise click.BadParameter("a topic's name is 1 to 128 of A-Z a-z 0-9 _ . : -")
    return value


def _checked_key(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str:
    try:
        return checked_key(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.group("mq", cls=Group)
def mq() -> None:
    """Look at message queues, put messages, purge topics."""


@mq.command("list")
@watch_option
@json_option
def list_queues(as_json: bool) -> None:
    """List the message queues."""
    found = connect().messages.queries.all_stats()
    if as_json:
        print_json({"queues": [one.as_json() for one in found]})
    else:
        print_table(QUEUE_COLUMNS, map(_queue_row, found), empty="no message queues: nothing was put yet")


def _queue_row(one: QueueStats) -> tuple[object, ...]:
    topics = one.topics.values()
    ages = [topic.oldest_waiting_s for topic in topics if topic.oldest_waiting_s is not None]
    return (
        one.queue,
        sum(topic.waiting for topic in topics),
        sum(topic.in_flight for topic in topics),
        sum(topic.delayed for topic in topics),
        duration(max(ages, default=None)),
        len(topics),
        one.consumers,
    )


@mq.command("stats")
@click.argument("queue", callback=checked_queue)
@watch_option
@json_option
def stats(queue: str, as_json: bool) -> None:
    """Show a message queue by topic, and what was counted.

    Exit status: 0 shown, 3 nobody uses such a queue.
    """
    found = _existing(connect().messages.queries, queue)
    if as_json:
        print_json(found.as_json())
        return
    timeout_s = found.visibility_timeout_s
    print_pairs(
        [
            ("queue", found.queue),
            ("visibility timeout", None if timeout_s is None else f"{timeout_s:g} s"),
            ("consumers", str(found.consumers)),
            *((what, _sum(found, what)) for what in COUNTED),
        ]
    )
    click.echo()
    print_table(TOPIC_COLUMNS, map(_topic_row, found.topics.values()), empty="no topics")


def _existing(queries: MessageQueries, queue: str) -> QueueStats:
    if not queries.exists(queue):
        raise Failure(f"there is no message queue {queue}: it holds nothing, and nobody subscribes", Exit.NOT_FOUND)
    return queries.stats(queue)


def _sum(found: QueueStats, what: str) -> int | None:
    return sum(topic.counts.get(what, 0) for topic in found.topics.values()) or None


def _topic_row(one: TopicStats) -> tuple[object, ...]:
    return (
        one.topic,
        "paused" if one.paused is not None else "open",
        one.waiting,
        one.in_flight,
        one.delayed,
        duration(one.oldest_waiting_s),
    )


@mq.command("put")
@click.argument("queue", callback=checked_queue)
@click.argument("topic", callback=_checked_topic)
@click.argument("data", required=False)
@click.option("--key", callback=_checked_key, help="Unique over the queue; a fresh one by default.")
@click.option("--max-size", type=click.IntRange(0), default=0, help="Only where the topic holds fewer messages.")
@click.option("--delay", "delay_s", type=Seconds(0, 31_536_000), default=0.0, help="Seconds until it is ready.")
@json_option
def put(queue: str, topic: str, data: str | None, key: str, max_size: int, delay_s: float, as_json: bool) -> None:
    """Put a message: DATA as UTF-8, or the bytes of stdin where it is left out or `-`.

    Exit status: 0 stored, or known already; 5 full.
    """
    payload = sys.stdin.buffer.read() if data in (None, "-") else str(data).encode(errors="surrogateescape")
    stored = connect().messages.any(queue).put(topic, payload, key=key, max_size=max_size, delay_s=delay_s, block=False)
    if as_json:
        print_json({"queue": queue, "topic": topic, "key": key, "stored": stored})
    else:
        click.echo(f"{key}  {'stored' if stored else 'known already'}")


@mq.command("peek")
@click.argument("queue", callback=checked_queue)
@click.argument("topic", callback=_checked_topic)
@click.option("--limit", type=click.IntRange(1, MOST_PEEKED), default=20, show_default=True, help="Messages to show.")
@watch_option
@json_option
def peek(queue: str, topic: str, limit: int, as_json: bool) -> None:
    """Show the next messages of a topic, taking none: those that wait, in flight, delayed."""
    client = connect()
    found = client.messages.queries.peek(queue, topic, limit, most_bytes=0 if as_json else SHOWN_BYTES)
    if as_json:
        print_json({"messages": [one.as_json() for one in found]})
        return
    now = redis_now(client)
    print_table(MESSAGE_COLUMNS, [_message_row(one, now) for one in found], empty="the topic is empty")


def _message_row(one: Stored, now: float) -> tuple[object, ...]:
    return (
        one.key,
        one.state,
        when(one.first_put_at, now),
        one.deliveries,
        when(one.due_at, now),
        one.consumer or "-",
        one.reason or "-",
        one.data.decode(errors="backslashreplace"),
    )


@mq.command("purge")
@click.argument("queue", callback=checked_queue)
@click.argument("topic", required=False, callback=_checked_topic)
@destructive
@json_option
def purge(queue: str, topic: str | None, **manner: Any) -> None:
    """Remove what waits or is delayed in a topic, or in all of a queue; what is in flight stays."""
    how, messages = Manner(**manner), connect().messages
    names = messages.queries.topics(queue) if topic is None else [topic]
    there = {name: messages.queries.topic(queue, name) for name in names}
    total = sum(one.waiting + one.delayed for one in there.values())
    question = f"remove {counted(total, 'message')} of {queue}" + ("" if topic is None else f"/{topic}")
    samples = [_sample(one) for name in there for one in _removable(messages.queries, queue, name)][:SAMPLES]
    if how.dry_run:
        if how.as_json:
            print_json({"dry_run": True, "queue": queue, "total": total, "samples": samples})
        else:
            show_lines(f"would {question}", total, samples)
        return
    if total:
        ask(question, total, samples, how)
    purged = {name: messages.any(queue).purge(name, actor=actor(how.reason)) for name in there}
    if how.as_json:
        print_json({"queue": queue, "total": sum(purged.values()), "topics": purged})
    else:
        click.echo(f"{counted(sum(purged.values()), 'message')} removed")


def _removable(queries: MessageQueries, queue: str, topic: str) -> list[Stored]:
    found = queries.peek(queue, topic, MOST_PEEKED, most_bytes=SHOWN_BYTES)
    return [one for one in found if one.state != "in_flight"][:SAMPLES]


def _sample(one: Stored) -> str:
    return "  ".join((one.topic, one.key, one.state, one.data.decode(errors="backslashreplace")))
