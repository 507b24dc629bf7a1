"""The API of the message queue: what is there, and putting."""

from __future__ import annotations

import re

from flask import Blueprint, Response, request

from dtq.errors import InvalidRequest, QueueNotFound, TopicNotFound
from dtq.keys import QUEUE_NAME, TOPIC_NAME
from dtq.mq.model import MAX_PAYLOAD_BYTES, checked_key
from dtq.strictjson import fault
from dtq.web.engine import engine
from dtq.web.http import answer, idempotency_key, read_bytes
from dtq.web.operation import Operation, operation
from dtq.web.queries import MessageQuery, read_query
from dtq.web.schemas import MessageAnswer, MessageQueueAnswer, MessageQueueList

MAX_KEY_CHARS = 255

bp = Blueprint("messages", __name__, url_prefix="/api/v1/mq")


@bp.get("")
@operation(Operation(need="read", tag="messages", answers={200: MessageQueueList}))
def queues() -> Response:
    """List the message queues with their topics."""
    return answer({"queues": [queue.as_json() for queue in engine().client.messages.queries.all_stats()]})


@bp.get("/<queue>")
@operation(Operation(need="read", tag="messages", answers={200: MessageQueueAnswer}, problems=(404,)))
def queue(queue: str) -> Response:
    """Show one message queue with its topics; one that was never used is empty."""
    return answer(engine().client.messages.queries.stats(_checked(QUEUE_NAME, queue)).as_json())


@bp.post("/<queue>/<topic>")
@operation(
    Operation(
        need="write",
        tag="messages",
        raw_body=True,
        query=MessageQuery,
        headers=("Idempotency-Key",),
        answers={201: MessageAnswer, 200: MessageAnswer},
        problems=(404, 409),
    )
)
def put(queue: str, topic: str) -> Response:
    """Put a message, the bytes of the body.

    201 when it is stored, 200 when its key is known already: from the Idempotency-Key header, else from `key`, else a
    fresh one. 429 when the topic holds `max_size` messages.
    """
    options = read_query(MessageQuery)
    key = _key(options.key)
    door = engine().client.messages.any(_checked(QUEUE_NAME, queue))
    stored = door.put(
        _checked(TOPIC_NAME, topic),
        read_bytes(MAX_PAYLOAD_BYTES),
        key=key,
        max_size=options.max_size,
        delay_s=options.delay_seconds,
        block=False,
    )
    return answer({"queue": queue, "topic": topic, "key": key, "stored": stored}, 201 if stored else 200)


def _key(asked: str | None) -> str:
    """Return the key of the header, else the one of the query, else a fresh one. Raises InvalidRequest."""
    given = idempotency_key(request.environ)
    if given is not None and not 1 <= len(given) <= MAX_KEY_CHARS:
        said = f"must be a string of 1 to {MAX_KEY_CHARS} characters"
        raise InvalidRequest(f"idempotency_key {said}", errors=[fault("/idempotency_key", said)])
    try:
        return checked_key(asked if given is None else given)
    except ValueError as error:
        raise InvalidRequest(f"key: {error}", errors=[fault("/key", str(error))]) from None


def _checked(pattern: re.Pattern[str], name: str) -> str:
    if pattern.fullmatch(name):
        return name
    if pattern is QUEUE_NAME:
        raise QueueNotFound("there can be no such queue: names are 1 to 64 of a-z 0-9 _ -")
    raise TopicNotFound("there can be no such topic: names are 1 to 128 of A-Z a-z 0-9 _ . : -")
