"""`flask dtq bench`: how fast this machine and this Redis are, with one worker process.

Everything happens in a namespace of its own, which is removed afterwards; what the Redis has to do for others meanwhile
is part of what is measured. `make bench` compares dtq with others on a server of its own.
"""

from __future__ import annotations

import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from dtq.commands.console import Exit, Failure, json_option, print_json, settings
from dtq.commands.tables import Column, print_table
from dtq.commands.workers import worker_script
from dtq.errors import DtqError
from dtq.settings import Settings, load_settings
from dtq.states import TERMINAL, Status

if TYPE_CHECKING:
    from dtq.client import Client

SLOTS = 8
PATIENCE_S = 300.0
START_S = 30.0
LOOK_S = 0.02
MOST = 50_000
_KEYS_A_CALL = 500


@click.command("bench")
@click.option("--tasks", "number", type=click.IntRange(100, MOST), default=5000, show_default=True, help="How many.")
@click.option("--payload-bytes", type=click.IntRange(0, 100_000), default=200, show_default=True, help="Of each task.")
@json_option
def bench(number: int, payload_bytes: int, as_json: bool) -> None:
    """Measure submitting, draining and latency on this Redis. Leaves nothing behind."""
    from dtq.client import Client

    chosen = settings()
    if chosen.redis_url.startswith("memory:"):
        raise Failure("DTQ_REDIS_URL=memory:// lives in one process: there is no worker to measure", Exit.CONFIGURATION)
    own = _own(chosen)
    with Client(settings=own) as client:
        client.server.call("SCAN", 0, "COUNT", 1)  # whose user may not do this would leave what it made
        try:
            found = _measure(client, own, number, {"text": "x" * payload_bytes})
        finally:
            _remove(client)
    if as_json:
        print_json(found)
        return
    rows = [(name, f"{value:,.0f}" if value >= 100 else f"{value:.2f}") for name, value in found.items()]
    print_table((Column(name="WHAT"), Column(name="FIGURE", right=True)), rows, empty="")


def _own(chosen: Settings) -> Settings:
    """Return the settings for a namespace of its own; what is left of it, should this be killed, ends by itself.

    Its keys begin like those of the usual namespace: a user of Redis who may touch only those may measure too.
    """
    usual = chosen.namespace.strip("{}")[:40]
    return load_settings(
        redis_url=chosen.redis_url,
        directory=chosen.directory,
        namespace=f"{usual}:bench-{secrets.token_hex(4)}",
        max_queue_depth=MOST + 1,
        tasks="dtq.commands.bench_tasks",
        task_retention_s=600,
        result_retention_s=600,
        worker_metrics_port=0,
        log_level="WARNING",
    )


def _measure(client: Client, own: Settings, number: int, payload: Mapping[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    singles = max(50, number // 10)
    began = time.perf_counter()
    for _ in range(singles):
        client.submit("bench_noop", payload)
    found["submitted a second, one by one"] = singles / (time.perf_counter() - began)
    began = time.perf_counter()
    for start in range(singles, number, 1000):
        refused = [
            answer
            for answer in client.submit_many(
                [{"task_type": "bench_noop", "payload": payload}] * min(1000, number - start)
            )
            if isinstance(answer, DtqError)
        ]
        if refused:
            raise refused[0]
    found["submitted a second, in bulk"] = (number - singles) / (time.perf_counter() - began)
    client.pause("default")  # so that it begins with all of it
    with _worker(own):
        _wait(lambda: bool(client.queries.workers()), START_S, "the worker")
        began = time.perf_counter()
        client.resume("default")
        _wait(lambda: _done(client) >= number, PATIENCE_S, "the last task")
        found["drained a second, one worker process"] = number / (time.perf_counter() - began)
        delays_ms = sorted(_delay_ms(client) for _ in range(100))
    found["latency when idle, ms, median"] = statistics.median(delays_ms)
    found["latency when idle, ms, 99th percentile"] = delays_ms[98]
    return found


@contextmanager
def _worker(own: Settings) -> Iterator[None]:
    names = ("redis_url", "namespace", "tasks", "worker_metrics_port", "log_level", "task_retention_s", "directory")
    told = {f"DTQ_{name.upper()}": str(getattr(own, name)) for name in names if getattr(own, name) != ""}
    command = [sys.executable, worker_script(), "--concurrency", str(SLOTS)]
    with subprocess.Popen(command, env={**os.environ, **told}, stdin=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(START_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _delay_ms(client: Client) -> float:
    time.sleep(0.01)
    submitted_at = time.time()
    task = client.submit("bench_stamp")
    ended = client.wait(task.task_id, START_S)
    if ended.status is not Status.SUCCEEDED:
        raise Failure(f"a task of the measurement is {ended.status}", Exit.FAILED)
    return float(ended.result - submitted_at) * 1000


def _done(client: Client) -> int:
    return sum(number for status, number in client.queries.counts("default").items() if status in TERMINAL)


def _wait(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    give_up_at = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= give_up_at:
            raise Failure(f"waited {limit_s:g} s for {what}", Exit.GAVE_UP)
        time.sleep(LOOK_S)


def _remove(client: Client) -> None:
    """Remove all keys of the namespace, a part at a time."""
    cursor, pattern = b"0", f"{client.broker.keys.namespace}:*"
    while True:
        cursor, names = client.server.call("SCAN", cursor, "MATCH", pattern, "COUNT", _KEYS_A_CALL)
        if names:
            client.server.call("UNLINK", *names)
        if cursor == b"0":
            return
