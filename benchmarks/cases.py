"""One function a case. Each makes its own server, and returns named figures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from benchmarks import bare
from benchmarks.stand import client_of, cpu_seconds, private_server, rss_mib, wait_for, worker_process
from dtq.client import Client
from dtq.states import Status

PAYLOAD = {"text": "x" * 185}
PAYLOAD_BYTES = 200
SLOTS = 8


def drain(scale: float) -> Mapping[str, float]:
    """No-op tasks that wait already, through one worker process with 8 threads; the bare loop in the same run."""
    number = max(2_000, int(60_000 * scale))
    with private_server() as url, client_of(url) as client:
        bulk = _fill(client, number)
        started_cpu, redis_cpu = time.process_time(), _redis_cpu(client)
        del started_cpu
        with worker_process(url, SLOTS) as worker:
            wait_for(lambda: _done(client) > 0, 30, "the first task")
            first_at, first = time.perf_counter(), _done(client)
            cpu = cpu_seconds(worker.pid)
            redis_cpu = _redis_cpu(client)
            wait_for(lambda: _done(client) >= number, 300, "the last task")
            tasks, seconds = number - first, time.perf_counter() - first_at
            worker_us = (cpu_seconds(worker.pid) - cpu) / tasks * 1e6
            redis_us = (_redis_cpu(client) - redis_cpu) / tasks * 1e6
            memory = rss_mib(worker.pid)
        bare_bulk = bare.fill(url, number, b"x" * PAYLOAD_BYTES)
        bare_drain = bare.drain(url)
    return {
        "drained/s": tasks / seconds,
        "bare drained/s": bare_drain,
        "of bare": tasks / seconds / bare_drain,
        "bulk enqueued/s": bulk,
        "bare bulk/s": bare_bulk,
        "worker CPU us/task": worker_us,
        "Redis CPU us/task": redis_us,
        "worker RSS MiB": memory,
    }


def enqueue(scale: float) -> Mapping[str, float]:
    """One submission after the other from one thread; bytes that a queued task takes."""
    number = max(500, int(10_000 * scale))
    with private_server() as url, client_of(url) as client:
        client.submit("noop", PAYLOAD)
        before, started = _memory(client), time.perf_counter()
        for _ in range(number):
            client.submit("noop", PAYLOAD)
        seconds = time.perf_counter() - started
        return {"enqueued/s": number / seconds, "bytes queued": (_memory(client) - before) / number}


def latency(scale: float) -> Mapping[str, float]:
    """From submit to handler start on an otherwise idle machine, 50 a second."""
    number = max(50, int(400 * scale))
    delays_ms = []
    with private_server() as url, client_of(url) as client, worker_process(url, SLOTS):
        wait_for(lambda: bool(client.queries.workers()), 30, "the worker")
        for _ in range(number):
            time.sleep(0.02)
            submitted_at = time.time()
            task = client.submit("stamp")
            delays_ms.append((client.wait(task.task_id, 5).result - submitted_at) * 1000)
    ranked = sorted(delays_ms[5:])
    return {"p50 ms": statistics.median(ranked), "p99 ms": ranked[int(len(ranked) * 0.99)]}


def idle(scale: float) -> Mapping[str, float]:
    """What one worker that has nothing to do asks of Redis."""
    seconds = max(5.0, 20 * scale)
    with private_server() as url, client_of(url) as client, worker_process(url, SLOTS) as worker:
        wait_for(lambda: bool(client.queries.workers()), 30, "the worker")
        time.sleep(3)  # a measured span, not a wait for something: the start is over
        commands, cpu = _commands(client), cpu_seconds(worker.pid)
        time.sleep(seconds)
        return {
            "commands/s": (_commands(client) - commands - 1) / seconds,
            "worker CPU %": (cpu_seconds(worker.pid) - cpu) / seconds * 100,
            "RSS MiB": rss_mib(worker.pid),
        }


def naps(scale: float) -> Mapping[str, float]:
    """Handlers that sleep 20 ms in 32 slots: of the ideal, where no slot ever waits."""
    number, slots, nap_s = max(640, int(6_400 * scale)), 32, 0.02
    with private_server() as url, client_of(url) as client:
        client.submit_many([{"task_type": "nap", "payload": {"seconds": nap_s}}] * number)
        with worker_process(url, slots):
            wait_for(lambda: _done(client) > 0, 30, "the first task")
            first_at, first = time.perf_counter(), _done(client)
            wait_for(lambda: _done(client) >= number, 120, "the last task")
            seconds = time.perf_counter() - first_at
    return {"of ideal": (number - first) * nap_s / slots / seconds}


CASES: Mapping[str, Callable[[float], Mapping[str, float]]] = {
    "drain": drain,
    "enqueue": enqueue,
    "latency": latency,
    "idle": idle,
    "naps": naps,
}


def _fill(client: Client, number: int) -> float:
    asked = [{"task_type": "noop", "payload": PAYLOAD}] * 1_000
    started = time.perf_counter()
    for _ in range(0, number, 1_000):
        client.submit_many(asked)
    return number / (time.perf_counter() - started)


def _done(client: Client) -> int:
    return client.queries.counts("default")[Status.SUCCEEDED]


def _info(client: Client, section: str, field: str) -> float:
    text = client.server.call("INFO", section).decode()
    return float(next(line.partition(":")[2] for line in text.splitlines() if line.startswith(f"{field}:")))


def _redis_cpu(client: Client) -> float:
    return _info(client, "cpu", "used_cpu_user") + _info(client, "cpu", "used_cpu_sys")


def _memory(client: Client) -> float:
    return _info(client, "memory", "used_memory")


def _commands(client: Client) -> float:
    """Commands that clients sent: those that scripts run inside are not calls over the wire."""
    stats = client.server.call("INFO", "commandstats").decode().splitlines()
    calls = 0.0
    for line in stats:
        name, _, figures = line.partition(":")
        if name in ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_ping") or (
            name == "cmdstat_xreadgroup" and "calls=" in figures
        ):
            calls += float(figures.split("calls=")[1].split(",")[0])
    return calls
