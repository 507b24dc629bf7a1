"""The records of the message queue, and what names, keys, payloads and options may be."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

from dtq.errors import PayloadTooLarge
from dtq.keys import QUEUE_NAME, TOPIC_NAME
from dtq.model import Actor, rfc3339

MAX_KEY_BYTES = 512
MAX_PAYLOAD_BYTES = 1_048_576
MOST_TOPICS = 1_000
"""Of one subscription: its claim looks at each."""
MOST_PREFETCH = 10_000
"""Of one topic: what is held is named in one script when a claim's reply was lost."""

PROGRAM = Actor("client")
"""Who the audit names when a program does not say who asks."""

_YEAR_S = 365 * 86_400.0

State: TypeAlias = Literal["waiting", "in_flight", "delayed", "corrupt"]


class Put(NamedTuple):
    """One message for `put_many`; a plain tuple of two or three does as well."""

    topic: str
    data: bytes | bytearray | memoryview
    key: str | None = None


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """How one user of a queue uses it. Raises ValueError for what cannot be."""

    name: str
    visibility_timeout_s: float = 30.0
    any_visibility: bool = False
    """For who only puts: takes the queue's own visibility timeout as it is."""
    idle_ttl_s: float = 3600.0
    tombstone_ttl_s: float = 0.0
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    max_deliveries: int = 0
    dead_topic: str = "dead"

    def __post_init__(self) -> None:
        checked_queue(self.name)
        checked_topic(self.dead_topic)
        checked_seconds("visibility_timeout_s", self.visibility_timeout_s, least=0.05)
        checked_seconds("idle_ttl_s", self.idle_ttl_s, least=0.001)
        checked_seconds("tombstone_ttl_s", self.tombstone_ttl_s)
        checked_count("max_payload_bytes", self.max_payload_bytes, least=1)
        checked_count("max_deliveries", self.max_deliveries)

    @cached_property
    def visibility(self) -> str:
        """The timeout as the scripts take it: ms, or nothing."""
        return "" if self.any_visibility else str(milliseconds(self.visibility_timeout_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A message as it stands in Redis."""

    state: State
    topic: str
    key: str
    data: bytes
    deliveries: int
    """How often it was claimed."""
    first_put_at: float | None
    """Seconds since the epoch, Redis's clock."""
    age_s: float | None
    consumer: str | None
    """Whose it is while it is in flight."""
    due_at: float | None
    """When a delayed one is made ready."""
    reason: str | None = None
    """Why it is dead."""
    origin: str | None = None
    """The topic in which it died."""
    died_at: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what answers show; the data as text where it is UTF-8."""
        return {
            "state": self.state,
            "topic": self.topic,
            "key": self.key,
            "data": self.data.decode(errors="backslashreplace"),
            "deliveries": self.deliveries,
            "first_put_at": rfc3339(self.first_put_at),
            "age_seconds": self.age_s,
            "consumer": self.consumer,
            "due_at": rfc3339(self.due_at),
            "reason": self.reason,
            "origin": self.origin,
            "died_at": rfc3339(self.died_at),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A subscription that was seen lately, anywhere."""

    name: str
    topics: Sequence[str]
    host: str
    process: int
    since: float
    """Seconds since the epoch, Redis's clock."""
    seen_at: float

    def as_json(self) -> dict[str, Any]:
        """Return what answers show."""
        return {
            "name": self.name,
            "topics": list(self.topics),
            "host": self.host,
            "process": self.process,
            "since": rfc3339(self.since),
            "seen_at": rfc3339(self.seen_at),
        }


COUNTED = (
    "stored",
    "duplicate",
    "full",
    "acknowledged",
    "released",
    "redelivered",
    "lost",
    "dead",
    "corrupt",
    "evicted",
    "purged",
    "requeued",
)
"""What is counted, each since the queue came to be; a queue that was forgotten begins at zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """A topic at one moment; `counts` are totals of what `COUNTED` names."""

    topic: str
    waiting: int = 0
    in_flight: int = 0
    delayed: int = 0
    oldest_waiting_s: float | None = None
    """Seconds since the first put of what waits longest among those that are next; None when nothing waits."""
    paused: Mapping[str, Any] | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """What `max_size` counts."""
        return self.waiting + self.in_flight + self.delayed

    def as_json(self) -> dict[str, Any]:
        """Return what answers show."""
        paused = None if self.paused is None else {**self.paused, "at": rfc3339(self.paused.get("at"))}
        return {
            "topic": self.topic,
            "depth": self.depth,
            "waiting": self.waiting,
            "in_flight": self.in_flight,
            "delayed": self.delayed,
            "oldest_waiting_seconds": self.oldest_waiting_s,
            "paused": self.paused is not None,
            "pause": paused,
            "counts": {what: self.counts.get(what, 0) for what in COUNTED},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """A message queue at one moment."""

    queue: str
    visibility_timeout_s: float | None
    """None until somebody claimed from it."""
    consumers: int
    topics: Mapping[str, TopicStats]
    """By name. Topics that are gone and only left counts are `_other`, added up."""

    @property
    def depth(self) -> int:
        """What waits, is in flight or is delayed, in all topics."""
        return sum(topic.depth for topic in self.topics.values())

    def as_json(self) -> dict[str, Any]:
        """Return what answers show."""
        return {
            "queue": self.queue,
            "visibility_timeout_s": self.visibility_timeout_s,
            "consumers": self.consumers,
            "depth": self.depth,
            "topics": [topic.as_json() for topic in self.topics.values()],
        }


# --- checks -----------------------------------------------------------------------------------------------------------


def checked_queue(name: str) -> str:
    """Return the name of a queue. Raises ValueError."""
    if not QUEUE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a queue: use 1 to 64 of a-z 0-9 _ -, a letter or a digit first")
    return name


def checked_topic(name: str) -> str:
    """Return the name of a topic. Raises ValueError."""
    if not TOPIC_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a topic: use 1 to 128 of A-Z a-z 0-9 _ . : -")
    return name


def checked_key(key: str | None) -> str:
    """Return the key of a message, a fresh one for None. Raises ValueError, TypeError."""
    if key is None:
        return fresh_key()
    if not isinstance(key, str):
        raise TypeError(f"a key is a string, not {type(key).__name__}")
    if not key or len(key.encode()) > MAX_KEY_BYTES:  # a lone surrogate is a ValueError too
        raise ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes of UTF-8")
    return key


def fresh_key() -> str:
    """Return a key that nobody else has."""
    return os.urandom(16).hex()


def checked_data(data: bytes | bytearray | memoryview, limit: int) -> bytes:
    """Return a payload. Raises TypeError for what is not bytes-like, PayloadTooLarge."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"a message is bytes, not {type(data).__name__}: encode it first")
    data = bytes(data)
    if len(data) > limit:
        raise PayloadTooLarge(f"the message has {len(data)} bytes, at most {limit} are allowed", limit=limit)
    return data


def checked_seconds(name: str, value: float, *, least: float = 0.0) -> float:
    """Return a number of seconds. Raises ValueError for one that is not between `least` and a year."""
    if isinstance(value, bool) or not math.isfinite(value) or not least <= value <= _YEAR_S:
        raise ValueError(f"{name}={value!r}: use a number of seconds from {least:g} to {_YEAR_S:.0f}")
    return value


def checked_wait(timeout_s: float | None) -> float:
    """Return how long to wait, in seconds; None: for ever. Raises ValueError."""
    return float("inf") if timeout_s is None else checked_seconds("timeout_s", timeout_s)


def checked_count(name: str, value: int, *, least: int = 0, most: int | None = None) -> int:
    """Return a whole number. Raises ValueError for one below `least` or above `most`, TypeError for anything else."""
    if operator.index(value) < least or (most is not None and value > most):
        raise ValueError(f"{name}={value!r}: use a whole number from {least} {'on' if most is None else f'to {most}'}")
    return value


def milliseconds(seconds: float) -> int:
    """Return seconds as whole milliseconds; what is not zero stays so."""
    return math.ceil(seconds * 1000)


def priority_classes(topics: Iterable[str] | Mapping[str, int]) -> list[list[str]]:
    """Return topics by urgency, the most urgent first; those of one class are equals.

    topics: in order, each a class of its own, or with a number each: the lowest is the most urgent.
    Raises ValueError for none, too many, a name twice or one that cannot be.
    """
    if isinstance(topics, str):
        raise ValueError(f"topics={topics!r}: give a list of topics, or a mapping of topics to numbers")
    numbered = dict(topics) if isinstance(topics, Mapping) else {}
    if not numbered:
        for topic in topics:
            if topic in numbered:
                raise ValueError(f"the topic {topic!r} is named twice")
            numbered[topic] = len(numbered)
    if not 1 <= len(numbered) <= MOST_TOPICS:
        raise ValueError(f"a subscription has 1 to {MOST_TOPICS} topics, not {len(numbered)}")
    classes: dict[int, list[str]] = {}
    for topic, number in sorted(numbered.items(), key=lambda item: item[1]):
        classes.setdefault(number, []).append(checked_topic(topic))
    return list(classes.values())
