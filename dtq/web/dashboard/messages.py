"""The message queues: topics, what stands in them, who takes from them."""

from __future__ import annotations

import json
from contextlib import suppress

from flask import Response, request

from dtq.errors import DtqError
from dtq.keys import QUEUE_NAME, TOPIC_NAME
from dtq.mq import MessageQueue, Stored
from dtq.mq.queries import MessageQueries
from dtq.web.auth import actor
from dtq.web.dashboard.action import action, back
from dtq.web.dashboard.flash import Said
from dtq.web.dashboard.jsontree import MOST_TEXT, Redactor, tree
from dtq.web.dashboard.page import Asked, Context, page
from dtq.web.dashboard.reads import Reads
from dtq.web.dashboard.words import plural
from dtq.web.engine import engine
from dtq.web.sessions import allow_page

PEEKED = 20
MOST_BYTES = 16 * 1024
TOPICS_SHOWN = 100
A_PAGE = 20


class MessageQueueNotFound(DtqError):
    """No message queue or topic can have this name, or none has."""

    code, http_status = "MESSAGE_QUEUE_NOT_FOUND", 404


@page("/messages", area="messages", parts={"queues": "messages/_queues.html"}, every_s=2.0)
def index(reads: Reads, asked: Asked) -> Context:
    """Show every message queue."""
    queries, number = _queries(reads), max(1, asked.get("page", 1, type=int))
    names = queries.queues()
    shown = names[(number - 1) * A_PAGE : number * A_PAGE]
    return {
        "title": "Message queues",
        "queues": [queries.stats(name) for name in shown],
        "number": number,
        "pages": max(1, -(-len(names) // A_PAGE)),
    }


@page("/messages/<queue>", area="messages", name="show", parts={"topics": "messages/_topics.html",
      "consumers": "messages/_consumers.html"}, every_s=2.0)  # fmt: skip
def show(reads: Reads, asked: Asked, queue: str) -> Context:
    """Show the topics of one message queue, and who takes from it."""
    queries = _queries(reads)
    if not QUEUE_NAME.fullmatch(queue) or not queries.exists(queue):
        raise MessageQueueNotFound(f"there is no message queue {queue[:64]}, or it has been idle for long")
    stats = queries.stats(queue)
    topics = sorted(stats.topics.values(), key=lambda topic: (-topic.depth, topic.topic))
    return {
        "title": queue,
        "queue": stats,
        "topics": sorted(topics[:TOPICS_SHOWN], key=lambda topic: topic.topic),
        "left_out": max(0, len(topics) - TOPICS_SHOWN),
        "consumers": queries.consumers(queue),
    }


@page("/messages/<queue>/<topic>", area="messages", name="topic", parts={"messages": "messages/_messages.html"})
def peek(reads: Reads, asked: Asked, queue: str, topic: str) -> Context:
    """Show what stands in a topic, the next ones first. Looking takes nothing out."""
    _checked(queue, topic)
    queries = _queries(reads)
    hides = Redactor(engine().settings.redact)
    stored = queries.peek(queue, topic, PEEKED, most_bytes=MOST_BYTES)
    return {
        "title": topic,
        "queue": queue,
        "topic": queries.topic(queue, topic),
        "messages": [(one, *_data(one, hides)) for one in stored],
        "dead": any(one.origin for one in stored),
    }


@page("/messages/<queue>/<topic>/purge", area="messages", name="purge")
def ask_purge(reads: Reads, asked: Asked, queue: str, topic: str) -> Context:
    """Show what a purge of a topic would remove."""
    allow_page("destructive")
    _checked(queue, topic)
    return {"title": f"Purge {topic}", "queue": queue, "topic": _queries(reads).topic(queue, topic)}


@action("/messages/<queue>/<topic>/pause")
def pause(queue: str, topic: str) -> Said:
    """Let nothing more of a topic be taken."""
    done = _queue(queue, topic).pause(topic, actor=actor(_reason()))
    return Said(kind="done", text=f"{topic} is paused: nothing is taken from it." if done else "It was paused already.")


@action("/messages/<queue>/<topic>/resume")
def resume(queue: str, topic: str) -> Said:
    """Let a topic go on."""
    done = _queue(queue, topic).resume(topic, actor=actor(_reason()))
    return Said(kind="done", text=f"{topic} goes on." if done else "It was not paused.")


@action("/messages/<queue>/<topic>/purge")
def purge(queue: str, topic: str) -> Response:
    """Remove what waits in a topic whose name was typed."""
    to = f"/messages/{queue}"
    _checked(queue, topic)
    if request.form.get("name", "").strip() != topic:
        return back(Said(kind="failed", text=f"Nothing was done: type the name of the topic, {topic}, to confirm."), to)
    number = _queue(queue, topic).purge(topic, actor=actor(_reason()))
    return back(Said(kind="done", text=f"Removed {plural(number, 'message')} of {topic}."), to)


@action("/messages/<queue>/<topic>/requeue")
def requeue(queue: str, topic: str) -> Said:
    """Let a dead message wait again."""
    key = request.form.get("key", "")
    made = engine().client.queue(_checked(queue, topic), dead_topic=topic)
    with suppress(ValueError):  # no message can have such a key
        if made.dead.requeue(key, actor=actor(_reason())):
            return Said(kind="done", text="It waits again, in the topic that it came from.")
    return Said(kind="failed", text="There is no such dead message any more.")


def _queries(reads: Reads) -> MessageQueries:
    return MessageQueries(reads.client.server, reads.client.settings)


def _queue(queue: str, topic: str) -> MessageQueue:
    return engine().client.queue(_checked(queue, topic))


def _checked(queue: str, topic: str) -> str:
    if not QUEUE_NAME.fullmatch(queue) or not TOPIC_NAME.fullmatch(topic):
        raise MessageQueueNotFound("there can be no such topic")
    return queue


def _reason() -> str:
    return request.form.get("reason", "").strip()


def _data(stored: Stored, hides: Redactor) -> tuple[object, str]:
    """Return a message as a tree where it is JSON, else as text."""
    try:
        return tree(json.loads(stored.data), hides, 60), ""
    except (ValueError, RecursionError):
        return None, stored.data.decode(errors="backslashreplace")[:MOST_TEXT]
