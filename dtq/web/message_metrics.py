"""What `/metrics` tells of the message queues: counts from Redis, by queue and topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from dtq.mq.model import QueueStats, TopicStats

_TOPIC = ("queue", "topic")
_OUTCOMES = ("stored", "duplicate", "full")
_COUNTERS = {
    "dtq_mq_acknowledged": ("Messages that were acknowledged", "acknowledged"),
    "dtq_mq_released": ("Messages that their consumers put back", "released"),
    "dtq_mq_redelivered": ("Claims of messages that were claimed before", "redelivered"),
    "dtq_mq_lost": ("Claims that expired: their consumer died, or was too slow to renew", "lost"),
    "dtq_mq_dead": ("Messages that went to the dead topic, by the topic that they came from", "dead"),
    "dtq_mq_dead_evicted": ("Dead messages that fell out of the full topic", "evicted"),
    "dtq_mq_corrupt": ("Entries that were no messages, or whose message was gone", "corrupt"),
    "dtq_mq_purged": ("Messages that operators removed", "purged"),
    "dtq_mq_requeued": ("Dead messages that wait again", "requeued"),
}
_FROM_ZERO = frozenset({"dtq_mq_redelivered", "dtq_mq_lost", "dtq_mq_dead", "dtq_mq_dead_evicted"})
"""What tells of trouble is told as 0 before there is any: increase() sees nothing in a line that begins above 0."""


def message_figures(queues: Sequence[QueueStats]) -> Iterator[Metric]:
    """Yield the metrics of message queues as `MessageQueries.figures` returns them: their labels are bounded."""
    rows = [((queue.queue, topic.topic), topic) for queue in queues for topic in queue.topics.values()]
    puts = CounterMetricFamily("dtq_mq_puts", "Puts by outcome", labels=(*_TOPIC, "outcome"))
    for labels, topic in rows:
        for outcome in _OUTCOMES:
            if outcome in topic.counts:
                puts.add_metric((*labels, outcome), topic.counts[outcome])
    yield puts
    for name, (text, what) in _COUNTERS.items():
        family = CounterMetricFamily(name, text, labels=_TOPIC)
        for labels, topic in rows:
            if name in _FROM_ZERO or what in topic.counts:
                family.add_metric(labels, topic.counts.get(what, 0))
        yield family
    yield from _gauges(rows)
    consumers = GaugeMetricFamily("dtq_mq_consumers", "Subscriptions that were seen within a minute", labels=("queue",))
    for queue in queues:
        consumers.add_metric((queue.queue,), queue.consumers)
    yield consumers


def _gauges(rows: Sequence[tuple[tuple[str, str], TopicStats]]) -> Iterator[Metric]:
    depth = GaugeMetricFamily("dtq_mq_depth", "Messages that wait, are in flight or are delayed", labels=_TOPIC)
    in_flight = GaugeMetricFamily("dtq_mq_in_flight", "Messages that consumers hold", labels=_TOPIC)
    delayed = GaugeMetricFamily("dtq_mq_delayed", "Messages that are not due yet", labels=_TOPIC)
    oldest = GaugeMetricFamily(
        "dtq_mq_oldest_age_seconds", "Since the first put of what waits longest of those that are next", labels=_TOPIC
    )
    for labels, topic in rows:
        depth.add_metric(labels, topic.depth)
        in_flight.add_metric(labels, topic.in_flight)
        delayed.add_metric(labels, topic.delayed)
        oldest.add_metric(labels, topic.oldest_waiting_s or 0.0)
    yield from (depth, in_flight, delayed, oldest)
