"""What is measured. One module a system, imported in its own environment: `submit`, `submit_many` if any, handlers.

This module describes them to whoever measures, and imports none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

URL = "BENCH_URL"
SLOTS = "BENCH_SLOTS"
KIND = "BENCH_KIND"
BACKEND = "BENCH_BACKEND"
"""Variables: where Redis is, what a worker is to do, and with which system the HTTP application submits."""


def url() -> str:
    """Return the URL of the Redis to be used, in a process of a system."""
    return os.environ[URL]


@dataclass(frozen=True, kw_only=True)
class System:
    """One system as it is measured: a worker process of threads, everything else as it comes."""

    name: str
    worker: Callable[[str, int], Sequence[str]]
    """The command of a worker, given the interpreter of the environment and the number of slots."""
    drained: int
    """Tasks in a drain: so many take some five seconds."""
    naps: int = 2_000
    nap_slots: int = 32
    has_many: bool = False
    """Whether there is a call that submits many."""
    recovers: str = ""
    """What its documentation says decides when a killed worker's tasks run again."""
    settings: Mapping[str, str] = field(default_factory=dict)


def _module(program: str, *arguments: str) -> Callable[[str, int], Sequence[str]]:
    """Return a command that is a program beside the interpreter; {slots} in an argument is their number."""

    def command(python: str, slots: int) -> Sequence[str]:
        given = [argument.format(slots=slots) for argument in arguments]
        return [os.path.join(os.path.dirname(python), program), *given]

    return command


SYSTEMS: Sequence[System] = (
    System(
        name="bare",
        worker=lambda python, slots: [python, "-m", "benchmarks.systems.bare"],
        drained=200_000,
        has_many=True,
        recovers="never: nothing claims what is pending",
    ),
    System(
        name="dtq",
        worker=lambda python, slots: [python, "worker.py", "--concurrency", str(slots)],
        drained=80_000,
        naps=6_400,
        has_many=True,
        recovers="the lease (30 s) and a second",
        settings={
            "DTQ_TASKS": "benchmarks.systems.dtq",
            "DTQ_LOG_LEVEL": "WARNING",
            "DTQ_MAX_QUEUE_DEPTH": "10000000",
            "DTQ_WORKER_METRICS_PORT": "0",
        },
    ),
    System(
        name="dramatiq",
        worker=_module("dramatiq", "benchmarks.systems.dramatiq", "--processes", "1", "--threads", "{slots}"),
        drained=8_000,
        recovers="a heartbeat of 60 s, then by chance with each command",
    ),
    System(
        name="huey",
        worker=_module("huey_consumer", "benchmarks.systems.huey.app", "-k", "thread", "-w", "{slots}", "-q"),
        drained=6_000,
        recovers="never: a task is taken off its list before it runs",
    ),
    System(
        name="rq",
        worker=_module("rq", "worker", "-q", "-w", "rq.worker.SimpleWorker", "-c", "benchmarks.systems.rq", "bench"),
        drained=800,
        naps=200,
        nap_slots=1,
        has_many=True,
        recovers="maintenance every 600 s, and then it has failed",
    ),
    System(
        name="celery",
        worker=_module(
            "celery", "-A", "benchmarks.systems.celery", "worker", "-P", "threads", "-c", "{slots}", "-l", "ERROR"
        ),
        drained=2_500,
        naps=1_200,
        recovers="never: a task is acknowledged before it runs",
    ),
)


def system_of(name: str) -> System:
    """Return a system by name. Raises KeyError."""
    return {system.name: system for system in SYSTEMS}[name]
