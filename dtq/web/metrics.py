"""`GET /metrics`: what Redis knows of the whole namespace, and what this web server has counted (contract, section 17).

The first is the same whichever process and whichever web server is asked, and survives them all; the second belongs to
this server. When Redis is away, the second is still told, and `dtq_redis_up` is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flask import Blueprint, Response, request
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from dtq import __version__
from dtq.errors import DtqError
from dtq.figures import OTHER, Figures, read_figures
from dtq.states import BANDS
from dtq.web import meters
from dtq.web.auth import allow
from dtq.web.engine import engine
from dtq.web.message_metrics import message_figures

bp = Blueprint("metrics", __name__)

_PAIR = ("queue", "task_type")

COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "dtq_tasks_submitted": ("Tasks that were accepted", ("submitted",)),
    "dtq_tasks_started": ("Starts of tasks: claims by workers", ("started",)),
    "dtq_tasks_succeeded": ("Tasks whose handler returned", ("succeeded",)),
    "dtq_tasks_failed": ("Tasks that failed for good, kept as dead letters or not", ("failed", "dead_lettered")),
    "dtq_tasks_retried": ("Failed attempts that another one follows", ("retried",)),
    "dtq_tasks_dead_lettered": ("Tasks that became dead letters", ("dead_lettered",)),
    "dtq_tasks_snoozed": ("Attempts that ended with a snooze", ("snoozed",)),
    "dtq_tasks_handed_back": ("Claims that a worker gave back", ("handed_back",)),
    "dtq_tasks_reclaimed": ("Tasks taken back from workers whose lease had ended", ("reclaimed",)),
    "dtq_tasks_requeued": ("Dead letters that were queued again", ("requeued",)),
    "dtq_dead_letters_evicted": ("Dead letters that fell out of the full stream", ("evicted",)),
    "dtq_dead_letters_discarded": ("Dead letters that operators gave up", ("discarded",)),
    "dtq_duplicates_absorbed": ("Tickets that stood for nothing and were removed, not executed", ("absorbed",)),
    "dtq_claim_deleted": ("Pending entries whose ticket had been deleted under its worker", ("claim_deleted",)),
    "dtq_reconciled": ("Tasks put back in place that their queue had lost", ("reconciled",)),
}
"""By name without `_total`: what it counts, and which counters of the engine add up to it."""

_FROM_ZERO = frozenset(
    f"dtq_{name}"
    for name in ("tasks_failed", "tasks_retried", "tasks_dead_lettered", "tasks_reclaimed", "dead_letters_evicted")
)
"""What tells of trouble is told as 0 before there is any: increase() sees nothing in a line that begins above 0."""

_ENDS = ("succeeded", "failed", "dead_lettered", "cancelled", "expired")
_RESULTS = {
    "succeeded": "succeeded",
    "failed": "attempt_failed",
    "timed_out": "attempt_timed_out",
    "cancelled": "attempt_cancelled",
    "lost": "attempt_lost",
    "snoozed": "snoozed",
}


@bp.get("/metrics")
def metrics() -> Response:
    """Tell the figures in the format that the caller reads: Prometheus's own, or OpenMetrics."""
    allow("read")
    registry = CollectorRegistry(support_collectors_without_names=True)
    registry.register(_RedisFigures())
    registry.register(meters.own_figures())
    wanted = request.args.getlist("name[]")
    try:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    except (TypeError, ValueError):  # a version that is no number
        encode, content_type = generate_latest, CONTENT_TYPE_PLAIN_0_0_4
    text = encode(registry.restricted_registry(wanted) if wanted else registry)
    return Response(text, content_type=content_type)


class _RedisFigures(Collector):
    def collect(self) -> Iterator[Metric]:
        yield _gauge("dtq_build_info", "The version of this web server", {(("version", __version__),): 1})
        try:
            client = engine().client
            figures = read_figures(client.server, client.queries, client.settings)
            messages = client.messages.queries.figures()
        except DtqError:
            yield _gauge("dtq_redis_up", "Whether Redis answered", {(): 0})
            return
        yield _gauge("dtq_redis_up", "Whether Redis answered", {(): 1})
        yield from _counted(figures)
        yield from _queues(figures)
        yield from _whole(figures)
        yield from message_figures(messages)


def _counted(figures: Figures) -> Iterator[Metric]:
    for name, (text, parts) in COUNTERS.items():
        family = CounterMetricFamily(name, text, labels=_PAIR)
        for pair, numbers in figures.counters.items():
            if name in _FROM_ZERO or any(part in numbers for part in parts):
                family.add_metric(pair, sum(numbers.get(part, 0) for part in parts))
        yield family
    completed = CounterMetricFamily("dtq_tasks_completed", "Tasks that ended", labels=(*_PAIR, "status"))
    attempts = CounterMetricFamily("dtq_task_attempts", "Attempts that ended", labels=(*_PAIR, "result"))
    for pair, numbers in figures.counters.items():
        for status in _ENDS:
            if status in numbers:
                completed.add_metric((*pair, status), numbers[status])
        for result, counter in _RESULTS.items():
            if counter in numbers:
                attempts.add_metric((*pair, result), numbers[counter])
    yield completed
    yield attempts


def _queues(figures: Figures) -> Iterator[Metric]:
    banded = ("queue", "priority")
    depth = GaugeMetricFamily("dtq_queue_depth", "Tickets in a band, waiting or held by workers", labels=banded)
    ready = GaugeMetricFamily("dtq_queue_ready", "Tickets in a band that no worker holds", labels=banded)
    pending = GaugeMetricFamily("dtq_queue_pending", "Tickets of a queue that workers hold", labels=("queue",))
    oldest = GaugeMetricFamily(
        "dtq_queue_oldest_age_seconds", "Since the creation of the longest waiting task of a band", labels=banded
    )
    paused = GaugeMetricFamily("dtq_queue_paused", "Whether nothing of a queue starts", labels=("queue",))
    for queue in figures.queues:
        for band in BANDS:
            waiting, claimed = queue.waiting_by_priority[band], queue.claimed_by_priority[band]
            labels = (queue.queue, str(band))
            depth.add_metric(labels, waiting + claimed)
            ready.add_metric(labels, waiting)
            oldest.add_metric(labels, queue.oldest_waiting_by_priority_s[band] or 0.0)
        pending.add_metric((queue.queue,), sum(queue.claimed_by_priority.values()))
        paused.add_metric((queue.queue,), int(queue.paused is not None))
    if figures.other_depth:
        depth.add_metric((OTHER, OTHER), figures.other_depth)
    yield from (depth, ready, pending, oldest, paused)


def _whole(figures: Figures) -> Iterator[Metric]:
    for name, text, value in (
        ("dtq_retry_scheduled", "Tasks in the schedule: retries and delays", figures.scheduled),
        ("dtq_dlq_depth", "Dead letters", figures.dead_letters),
        ("dtq_workers_active", "Workers whose heartbeat is fresh", figures.workers),
        ("dtq_worker_inflight", "Tasks that all workers run, as their heartbeats tell", figures.running),
        ("dtq_redis_memory_used_bytes", "What Redis uses", figures.memory_used_bytes),
        ("dtq_redis_memory_max_bytes", "Its maxmemory; 0: none, or not told", figures.memory_max_bytes),
    ):
        yield _gauge(name, text, {(): value})
    policy = (("policy", figures.eviction_policy),)
    yield _gauge("dtq_redis_eviction_policy", "The maxmemory-policy; anything but noeviction loses tasks", {policy: 1})


def _gauge(name: str, text: str, values: Mapping[tuple[tuple[str, str], ...], float]) -> Metric:
    names = tuple(label for labels in values for label, _ in labels)
    family = GaugeMetricFamily(name, text, labels=names)
    for labels, value in values.items():
        family.add_metric([label for _, label in labels], value)
    return family
