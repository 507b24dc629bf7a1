"""What single operations cost with a thousand, a hundred thousand and a million tasks in Redis."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

from benchmarks.handler import payload
from benchmarks.stand import Figures, client_of, stand
from dtq.client import Client
from dtq.model import Outcome
from dtq.states import Status
from dtq.taskfilter import TaskFilter

SIZES = (1_000, 100_000, 1_000_000)
_AT_ONCE = 1_000
_ROUNDS = 100


def grown(size: int) -> Figures:
    """Microseconds that a caller waits (medians): half the tasks wait in a queue, half for their time."""
    with stand() as found, client_of(found) as client:
        one = {"task_type": "bench", "payload": payload(1)}
        for start in range(0, size // 2, _AT_ONCE):
            number = min(_AT_ONCE, size // 2 - start)
            client.submit_many([one] * number)
            client.submit_many([{**one, "delay_seconds": 86_400}] * number)
        middle = client.tasks(TaskFilter(queue="default"), 200).next_cursor
        finishing = itertools.count()
        return {
            "submit": _median_us(lambda: client.submit("bench", payload(1))),
            "claim of 8": _median_us(lambda: client.broker.claim("bench", ["default"], 8), _ROUNDS // 2),
            "commit of 8": _median_us(_commits(client, finishing), _ROUNDS // 4),
            "first page of 50": _median_us(lambda: client.tasks(TaskFilter(queue="default"), 50)),
            "later page of 50": _median_us(lambda: client.tasks(TaskFilter(queue="default"), 50, middle)),
            "page of a status": _median_us(lambda: client.tasks(TaskFilter(status=Status.PENDING), 50)),
            "counts of a queue": _median_us(lambda: client.queries.counts("default")),
            "promote 100": _promote_us(client),
            "bytes a task": found.memory() / size,
        }


def _median_us(operation: Callable[[], object], rounds: int = _ROUNDS) -> float:
    spent = []
    for _ in range(rounds):
        began = time.perf_counter()
        operation()
        spent.append((time.perf_counter() - began) * 1e6)
    return statistics.median(spent)


def _commits(client: Client, numbers: itertools.count[int]) -> Callable[[], object]:
    """Return what commits eight claims that were made before, each time."""
    claims = [
        client.broker.claim("bench", ["default"], 8).claims for _ in range(_ROUNDS // 4)
    ]  # each commit has its own: a claim has one outcome
    return lambda: client.broker.commit(
        "bench", [Outcome(claim=claim, kind="succeed") for claim in claims[next(numbers)]]
    )


def _promote_us(client: Client) -> float:
    spent = []
    for _ in range(_ROUNDS // 10):
        client.submit_many([{"task_type": "bench", "delay_seconds": 0.001}] * 100)
        time.sleep(0.01)
        began = time.perf_counter()
        client.broker.upkeep.promote()
        spent.append((time.perf_counter() - began) * 1e6)
    return statistics.median(spent)
