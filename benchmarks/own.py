"""What only dtq is asked: order under load, many queues, many workers, large payloads, processes, busy handlers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median

from benchmarks.handler import payload
from benchmarks.stand import Figures, Processes, Stand, client_of, percentile, stand, wait_for
from benchmarks.systems import system_of
from benchmarks.threads import computed, handed_over
from dtq.client import Client
from dtq.redisio import Interrupted
from dtq.streams import Doorbell

DTQ = system_of("dtq")
START_S = 40.0
_BULK = 1_000


def queues(scale: float) -> Figures:
    """Draining the same number of no-ops from one queue, and from ten that one worker serves: in turn, medians."""
    number = int(40_000 * scale)
    ten_names = [f"q{index}" for index in range(10)]
    one, ten, share = _compared(lambda: _drained(number, ["q0"]), lambda: _drained(number, ten_names))
    return {"one queue, tasks/s": one, "ten queues, tasks/s": ten, "ten of one": share}


def processes(scale: float) -> Figures:
    """Handlers that compute for 5 ms: `--processes 2` beside one process of the same eight slots, in turn, medians.

    "Without dtq": bare threads that compute the same.
    """
    number, seconds = max(200, int(2_000 * scale)), max(2.0, 10 * scale)
    one, two, share = _compared(
        lambda: _drained(number, ["default"], "compute", slots=8),
        lambda: _drained(number, ["default"], "compute", "--processes", "2", slots=4),
    )
    *_, limit = _compared(lambda: computed(1, 8, seconds), lambda: computed(2, 4, seconds))
    return {
        "one process, tasks/s": one,
        "two processes, tasks/s": two,
        "two of one": share,
        "two of one without dtq": limit,
    }


def _compared(first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float, float]:
    """Measure two things in turn, three times. Return the medians of both, and of the second's share of the first."""
    pairs = [(first(), second()) for _ in range(3)]
    firsts, seconds = zip(*pairs, strict=True)
    return median(firsts), median(seconds), median(b / a for a, b in pairs)


def priority(scale: float) -> Figures:
    """From submission to start of single p9 tasks, while one worker of 8 slots drains p0 no-ops without end."""
    number = max(50, int(200 * scale))
    with stand() as found, client_of(found) as client, _worker(found, 8):
        _fill(client, int(50_000 * max(scale, 0.2)), "bench", "default", priority=0)
        wait_for(lambda: found.record.count() > 500, START_S, "the first tasks")
        sent = []
        for _ in range(number):
            if client.queries.queue("default").depth < 5_000:
                _fill(client, 5_000, "bench", "default", priority=0)
            given = payload(0)
            sent.append(given["sent"])
            client.submit("bench", given, priority=9)
            time.sleep(0.01)
        delays = [delay_s * 1e3 for delay_s in _delays_s(found, sent)]
        drained = found.record.count()
    return {"p50 ms": percentile(delays, 0.5), "p99 ms": percentile(delays, 0.99), "p0 drained meanwhile": drained}


def long_tasks(scale: float) -> Figures:
    """A p9 task while every slot is busy with p0 tasks of a second: how many of their lengths until it starts."""
    number = max(5, int(20 * scale))
    with stand() as found, client_of(found) as client, _worker(found, 4):
        for _ in range(4 * (number + 4)):
            client.submit("compute", {**payload(0), "seconds": 0.0, "nap": 1.0}, priority=0)
        wait_for(lambda: found.record.count() >= 4, START_S, "the first tasks")
        sent = []
        for _ in range(number):
            given = {**payload(0), "seconds": 0.0, "nap": 0.0}
            sent.append(given["sent"])
            client.submit("compute", given, priority=9)
            time.sleep(1.1)
        delays = _delays_s(found, sent)
    return {"longest of a task": max(delays), "median of a task": percentile(delays, 0.5)}


def _delays_s(found: Stand, sent: Sequence[int]) -> list[float]:
    """Wait until all that was sent at these times has started; return how long each took."""
    wanted = set(sent)
    wait_for(lambda: wanted <= {mark[1] for mark in found.record.marks()}, 60, "the last task", pause_s=1.0)
    return [(start - at) / 1e9 for start, at in found.record.marks() if at in wanted]


def many_workers(scale: float) -> Figures:
    """64 idle workers wait on one queue: how many of them wake for each task that is submitted."""
    number = max(50, int(400 * scale))
    with stand() as found, client_of(found) as client, client_of(found) as theirs:
        waiting = [_Waiter(theirs, index) for index in range(64)]
        time.sleep(1)
        began = sum(one.wakes for one in waiting)
        for index in range(number):
            client.submit("bench", payload(index))
            time.sleep(0.005)
        wait_for(lambda: sum(one.claimed for one in waiting) >= number, 30, "the last claim")
        wakes = sum(one.wakes for one in waiting) - began
        for one in waiting:
            one.stop()
    return {"wakes a task": wakes / number, "workers": len(waiting)}


def large_payloads(scale: float) -> Figures:
    """Payloads of 200 KB: how often each crosses the wire, and what that costs."""
    number, size = max(20, int(300 * scale)), 200_000
    text = "x" * (size - 50)
    with stand() as found, client_of(found) as client, _worker(found, 4):
        client.submit("swallow", {"sent": 0, "text": text})
        wait_for(lambda: found.record.count() >= 1, START_S, "the first task")
        before, began = found.used(), time.perf_counter()
        for _ in range(number):
            client.submit("swallow", {"sent": time.monotonic_ns(), "text": text})
        seconds = time.perf_counter() - began
        wait_for(lambda: found.record.count() > number, 60, "the last task")
        time.sleep(0.5)
        spent = found.used() - before
    return {
        "into Redis, of its length": spent["bytes_in"] / number / size,
        "out of Redis, of its length": spent["bytes_out"] / number / size,
        "submitted MB/s": number * size / seconds / 1e6,
        "Redis CPU us": spent["cpu_s"] / number * 1e6,
    }


def busy_handlers(scale: float) -> Figures:
    """Seven of eight slots compute, under a lease of 2 s: leases lost, and how soon the idle slot starts a task.

    Without dtq: a signal through a process of as many computing threads, with as many hand-overs between threads.
    """
    seconds = max(10.0, 600 * scale)
    with stand() as found, client_of(found) as client, _worker(found, 8, DTQ_VISIBILITY_TIMEOUT_S="2"):
        burning = [
            client.submit("compute", {**payload(0), "seconds": seconds / 7}, timeout_ms=3_600_000) for _ in range(7)
        ]
        wait_for(lambda: found.record.count() >= 7, START_S, "the busy tasks")
        sent, give_up_at = [], time.monotonic() + seconds
        while time.monotonic() < give_up_at:
            given = payload(0)
            sent.append(given["sent"])
            client.submit("bench", given)
            time.sleep(0.2)
        delays = [delay_s * 1e3 for delay_s in _delays_s(found, sent)]
        lost = sum(client.get(task.task_id).seq > 2 for task in burning)
    bare = handed_over(7, min(seconds, 120))
    return {
        "seconds": seconds,
        "leases lost": lost,
        "p50 ms until a start": percentile(delays, 0.5),
        "p99 ms until a start": percentile(delays, 0.99),
        "p50 ms without dtq": bare[0],
        "p99 ms without dtq": bare[1],
    }


CASES: Mapping[str, Callable[[float], Figures]] = {
    "queues": queues,
    "processes": processes,
    "priority": priority,
    "long_tasks": long_tasks,
    "many_workers": many_workers,
    "large_payloads": large_payloads,
    "busy_handlers": busy_handlers,
}


class _Waiter:
    """An idle worker as far as Redis sees one: it waits for the doorbell, claims, and waits again."""

    def __init__(self, client: Client, number: int) -> None:
        self.wakes = 0
        self.claimed = 0
        self._client = client
        self._name = f"waiter-{number}"
        self._bell = Doorbell(client.server, client.broker.keys, ["default"])
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended = True
        self._bell.interrupt()
        self._thread.join(10)
        self._bell.close()

    def _run(self) -> None:
        while not self._ended:
            try:
                if not self._bell.wait(5.0):
                    continue
            except Interrupted:
                return
            self.wakes += 1
            self.claimed += len(self._client.broker.claim(self._name, ["default"], 1).claims)


@contextmanager
def _worker(found: Stand, slots: int, *arguments: str, **environment: str) -> Iterator[Processes]:
    with found.working(DTQ, slots, *arguments, **environment) as worker:
        yield worker


def _fill(client: Client, number: int, task_type: str, queue: str, **options: object) -> None:
    for start in range(0, number, _BULK):
        given = {"task_type": task_type, "queue": queue, "payload": {**payload(0), "seconds": 0.005}, **options}
        client.submit_many([given] * min(_BULK, number - start))


def _drained(number: int, names: list[str], task_type: str = "bench", *arguments: str, slots: int = 8) -> float:
    """Return how many of `number` tasks, spread over queues, start in a second."""
    with stand() as found, client_of(found) as client:
        for name in names:
            _fill(client, number // len(names), task_type, name)
        with _worker(found, slots, "--queues", ",".join(names), *arguments):
            wait_for(lambda: found.record.count() >= number, START_S + 300, "the last task", pause_s=0.1)
        starts = [start for start, _ in found.record.marks()][number // 10 :]
    return len(starts) / (starts[-1] - starts[0]) * 1e9
