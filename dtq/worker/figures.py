"""What one worker process tells of itself, as families of prometheus_client. Imported at the first scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

import dtq
from dtq.worker.state import WorkerState
from dtq.worker.timings import BOUNDS

_HISTOGRAMS = {
    "wait": ("dtq_task_wait_seconds", "From when a task could have been taken to the start of its handler"),
    "execution": ("dtq_task_execution_seconds", "How long handlers ran, by attempt"),
    "duration": ("dtq_task_duration_seconds", "From the creation of a task to its end"),
    "retry_delay": ("dtq_retry_delay_seconds", "From a failed attempt to when the next one is due"),
}
_OUTCOMES = ("succeeded", "retried", "failed", "cancelled", "snoozed", "handed_back")


def registry(state: WorkerState, running: Callable[[], int]) -> CollectorRegistry:
    """Return the figures of a worker. running: how many handlers run now."""
    made = CollectorRegistry()
    made.register(WorkerFigures(state, running))
    ProcessCollector(registry=made)
    return made


class WorkerFigures(Collector):
    """Reads what the worker counts anyway."""

    def __init__(self, state: WorkerState, running: Callable[[], int]) -> None:
        self._state = state
        self._running = running

    def collect(self) -> Iterator[Metric]:
        """Return the families."""
        state, stats = self._state, self._state.stats
        yield GaugeMetricFamily("dtq_worker_slots", "Tasks that this worker runs at once", value=state.concurrency)
        yield GaugeMetricFamily("dtq_worker_running", "Tasks that this worker runs", value=self._running())
        yield GaugeMetricFamily("dtq_worker_held", "Tasks in its hands, running or not", value=len(state.holdings))
        away = "Whether Redis is away for this worker"
        yield GaugeMetricFamily("dtq_worker_redis_away", away, value=int(state.outage.away))
        lag = "By how much the last renewal of leases was late"
        yield GaugeMetricFamily("dtq_worker_renewal_lag_seconds", lag, value=stats.renewal_lag_s)
        outcomes = CounterMetricFamily("dtq_worker_outcomes", "What became of claims", labels=("outcome",))
        for name in _OUTCOMES:
            outcomes.add_metric((name,), getattr(stats, name))
        yield outcomes
        yield CounterMetricFamily("dtq_worker_claimed", "Tasks that it claimed", value=stats.claimed)
        stale = "Outcomes that were dropped since the claim was over"
        yield CounterMetricFamily("dtq_worker_stale_outcomes", stale, value=stats.stale)
        yield CounterMetricFamily("dtq_worker_timeouts", "Attempts over their time limit", value=stats.timed_out)
        written_off = "Threads given up since their handlers did not return"
        yield CounterMetricFamily("dtq_worker_written_off_threads", written_off, value=stats.written_off)
        version = GaugeMetricFamily("dtq_worker_build_info", "The version of this worker", labels=("version",))
        version.add_metric((dtq.__version__,), 1)
        yield version
        yield from self._histograms()

    def _histograms(self) -> Iterator[Metric]:
        series = self._state.stats.timings.series()
        for measure, (name, text) in _HISTOGRAMS.items():
            family = HistogramMetricFamily(name, text, labels=("queue", "task_type"))
            bounds = [*map(str, BOUNDS[measure]), "+Inf"]
            for pair, buckets in series.items():
                counts = list(accumulate(buckets[measure].counts))
                family.add_metric(pair, list(zip(bounds, counts, strict=True)), buckets[measure].sum_s)
            yield family
