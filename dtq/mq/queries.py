"""The message queue's reads: what the command line, the API, metrics and the dashboard show. They change nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dtq.keys import Keys
from dtq.mq.model import Consumer, QueueStats, State, Stored, TopicStats, checked_queue
from dtq.mq.store import PRESENCE_KEEP_MS, mq_limits
from dtq.redisio import Server
from dtq.scripts import Scripts
from dtq.settings import Settings

TOPICS_A_SCRIPT = 100
MOST_PEEKED = 100
MOST_QUEUES_APART = 100
OTHER = "_other"
_STATES: Mapping[bytes, State] = {
    b"waiting": "waiting",
    b"in_flight": "in_flight",
    b"delayed": "delayed",
    b"corrupt": "corrupt",
}


class MessageQueries:
    """Reads of all message queues of a namespace. Safe to use from any thread, and after a fork.

    Every method raises RedisUnavailable when Redis is away, and ValueError for a name that cannot be.
    """

    def __init__(self, server: Server, settings: Settings, scripts: Scripts | None = None) -> None:
        """scripts: those of the message queue, where they are there already."""
        self._server = server
        self._keys = Keys(settings.namespace)
        self._scripts = scripts or Scripts(server, self._keys, mq_limits(settings))

    def queues(self) -> list[str]:
        """Return the names of the queues that hold messages, or did until a short while ago, sorted."""
        names = [name.decode() for name in self._server.call("ZRANGE", self._keys.mq_queues(), 0, -1)]
        there = self._server.pipeline([("EXISTS", self._keys.mq_config(name)) for name in names])
        return sorted(name for name, exists in zip(names, there, strict=True) if exists)

    def exists(self, queue: str) -> bool:
        """Whether somebody uses the queue, or did until a short while ago."""
        return bool(self._server.call("EXISTS", self._keys.mq_config(checked_queue(queue))))

    def topics(self, queue: str) -> list[str]:
        """Return the names of a queue's topics that hold messages, or did until a short while ago, sorted."""
        indexed = self._server.call("ZRANGE", self._keys.mq_topics(checked_queue(queue)), 0, -1)
        rows = self._rows(queue, map(bytes.decode, indexed))
        return sorted(name for name, stats in rows.items() if stats is not None)

    def stats(self, queue: str, *, bounded: bool = False) -> QueueStats:
        """Return a queue at one moment, in one pipeline and a script for every hundred topics.

        bounded: only topics that are counted apart are told apart, there or not, and all others added up as `_other`:
        for metrics, whose labels must be few and stay. Else all that are there, and as `_other` what was counted for
        those that are gone.
        """
        keys = self._keys
        config, counts, consumers, indexed, paused = self._server.pipeline(
            [
                ("HGET", keys.mq_config(checked_queue(queue)), "visibility"),
                ("HGETALL", keys.mq_counts(queue)),
                ("ZCOUNT", keys.mq_consumers(queue), f"({self._now_ms()}", "+inf"),
                ("ZRANGE", keys.mq_topics(queue), 0, -1),
                ("HKEYS", keys.mq_paused(queue)),
            ]
        )
        counted = _counts(counts)
        rows = self._rows(queue, {topic.decode() for topic in (*indexed, *paused)})
        there = {name: row for name, row in rows.items() if row is not None}
        apart = counted.keys() - {OTHER} if bounded else there.keys()
        topics = {
            name: TopicStats(topic=name, counts=counted.get(name, {}), **there.get(name, {})) for name in sorted(apart)
        }
        others = [
            TopicStats(topic=name, counts=counted.get(name, {}), **there.get(name, {}))
            for name in (counted.keys() | there.keys()) - apart
        ]
        if others:
            topics[OTHER] = _added_up(others)
        return QueueStats(
            queue=queue,
            visibility_timeout_s=int(config) / 1000 if config else None,
            consumers=consumers,
            topics=topics,
        )

    def figures(self) -> list[QueueStats]:
        """Return every queue as metrics show it, `bounded`: the eldest hundred queues apart, the others as `_other`."""
        names = [name.decode() for name in self._server.call("ZRANGE", self._keys.mq_queues(), 0, -1)]
        found = [self.stats(name, bounded=True) for name in names]
        rest = found[MOST_QUEUES_APART:]
        if not rest:
            return found
        topics = _added_up([topic for queue in rest for topic in queue.topics.values()])
        other = QueueStats(
            queue=OTHER,
            visibility_timeout_s=None,
            consumers=sum(queue.consumers for queue in rest),
            topics={OTHER: topics},
        )
        return [*found[:MOST_QUEUES_APART], other]

    def all_stats(self) -> list[QueueStats]:
        """Return every queue, by name, as `stats` does."""
        return [self.stats(name) for name in self.queues()]

    def topic(self, queue: str, topic: str) -> TopicStats:
        """Return what stands in one topic, without what was counted; one that is not there is empty."""
        row = self._rows(checked_queue(queue), [topic])[topic]
        return TopicStats(topic=topic, **(row or {}))

    def peek(self, queue: str, topic: str, limit: int, *, most_bytes: int = 0) -> list[Stored]:
        """Return up to `limit` (at most 100) messages as they stand: those that wait, in flight, delayed.

        most_bytes: data is cut to that; 0: it is not.
        """
        return self._look(queue, topic, "", min(limit, MOST_PEEKED), most_bytes)

    def get(self, queue: str, key: str) -> Stored | None:
        """Return the message with a key, None when there is none."""
        found = self._look(queue, "", key, 1, 0)
        return found[0] if found else None

    def consumers(self, queue: str) -> list[Consumer]:
        """Return the subscriptions that were seen within a minute, by name."""
        keys, now_ms = self._keys, self._now_ms()
        names = [name.decode() for name in self._server.call("ZRANGE", keys.mq_consumers(checked_queue(queue)), 0, -1)]
        fields = ("topics", "host", "process", "since", "seen")
        records = self._server.pipeline([("HMGET", keys.mq_consumer(queue, name), *fields) for name in sorted(names)])
        found = []
        for name, (topics, host, process, since, seen) in zip(sorted(names), records, strict=True):
            if seen is not None and int(seen) > now_ms - PRESENCE_KEEP_MS:
                found.append(
                    Consumer(
                        name=name,
                        topics=topics.decode().split("\n"),
                        host=host.decode(),
                        process=int(process),
                        since=int(since) / 1000,
                        seen_at=int(seen) / 1000,
                    )
                )
        return found

    def _rows(self, queue: str, names: Iterable[str]) -> dict[str, dict[str, Any] | None]:
        """Return the fields of TopicStats by topic; None for one that is gone."""
        ordered, found = sorted(names), {}
        for start in range(0, len(ordered), TOPICS_A_SCRIPT):
            chunk = ordered[start : start + TOPICS_A_SCRIPT]
            now, rows = self._scripts.run("mq_stats", items=[(topic,) for topic in chunk], queue=queue)
            for name, row in zip(chunk, rows, strict=True):
                found[name] = _row(row, int(now))
        return found

    def _look(self, queue: str, topic: str, key: str, limit: int, most_bytes: int) -> list[Stored]:
        now, raw = self._scripts.run(
            "mq_look", queue=checked_queue(queue), topic=topic, message_key=key, limit=limit, most=most_bytes
        )
        return [_stored(one, int(now)) for one in raw]

    def _now_ms(self) -> int:
        seconds, micros = self._server.call("TIME")
        return int(seconds) * 1000 + int(micros) // 1000


def _counts(flat: Sequence[bytes]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for name, number in zip(flat[::2], flat[1::2], strict=True):
        topic, _, what = name.decode().partition(" ")
        if what:  # else it marks a topic that is counted apart
            found.setdefault(topic, {})[what] = int(number)
    return found


def _row(row: Sequence[Any], now_ms: int) -> dict[str, Any] | None:
    waiting, in_flight, delayed, oldest, paused, there = row
    if not there and not paused:
        return None
    return {
        "waiting": waiting,
        "in_flight": in_flight,
        "delayed": delayed,
        "oldest_waiting_s": max(0.0, (now_ms - int(oldest)) / 1000) if oldest else None,
        "paused": json.loads(paused) if paused else None,
    }


def _added_up(topics: Sequence[TopicStats]) -> TopicStats:
    counts: dict[str, int] = {}
    for topic in topics:
        for what, number in topic.counts.items():
            counts[what] = counts.get(what, 0) + number
    ages = [topic.oldest_waiting_s for topic in topics if topic.oldest_waiting_s is not None]
    return TopicStats(
        topic=OTHER,
        waiting=sum(topic.waiting for topic in topics),
        in_flight=sum(topic.in_flight for topic in topics),
        delayed=sum(topic.delayed for topic in topics),
        oldest_waiting_s=max(ages, default=None),
        counts=counts,
    )


def _stored(raw: Sequence[Any], now_ms: int) -> Stored:
    state, topic, key, data, first, deliveries, consumer, due, flat = raw
    more = dict(zip(flat[::2], flat[1::2], strict=True))
    return Stored(
        state=_STATES[state],
        topic=topic.decode(),
        key=key.decode("utf-8", "replace"),
        data=data,
        deliveries=deliveries,
        first_put_at=int(first) / 1000 if first else None,
        age_s=max(0.0, (now_ms - int(first)) / 1000) if first else None,
        consumer=consumer.decode() or None,
        due_at=int(due) / 1000 if due else None,
        reason=_text(more.get(b"reason")),
        origin=_text(more.get(b"topic")),
        died_at=int(more[b"at"]) / 1000 if b"at" in more else None,
    )


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")
