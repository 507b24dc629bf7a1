"""The cases that every system runs, one after the other on one server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from benchmarks import systems
from benchmarks.handler import NAP_S
from benchmarks.stand import Figures, Stand, percentile, wait_for
from benchmarks.systems import System

SLOTS = 8
START_S = 40.0


def enqueue(stand: Stand, system: System, scale: float) -> Figures:
    """Submissions one after the other from one thread, and a hundred a call where there is such a call."""
    seconds = str(max(1.0, 4 * scale))
    stand.reset()
    stand.produce(system, "--number", "200")  # what is there once, however many tasks follow
    before, memory = stand.used(), stand.memory()
    told = stand.produce(system, "--seconds", seconds, "--warm-up", "50")
    spent = stand.used() - before
    number = told["number"] + 50
    figures = {
        "one by one/s": told["number"] / told["seconds"],
        "bytes queued": (stand.memory() - memory) / number,
        "client CPU us": told["cpu"] / told["number"] * 1e6,
        "Redis CPU us to submit": spent["cpu_s"] / number * 1e6,
    }
    if system.has_many:
        stand.reset()
        before = stand.used()
        told = stand.produce(system, "--seconds", seconds, "--warm-up", "50", "--many")
        spent = stand.used() - before
        figures |= {
            "bulk/s": told["number"] / told["seconds"],
            "client CPU us in bulk": told["cpu"] / told["number"] * 1e6,
            "Redis CPU us in bulk": spent["cpu_s"] / told["number"] * 1e6,
        }
    stand.reset()
    return figures


def drain(stand: Stand, system: System, scale: float) -> Figures:
    """No-ops that wait already, through one worker process with 8 slots; then the same worker idle."""
    number = max(200, int(system.drained * scale))
    stand.reset()
    empty = stand.memory()
    _fill(stand, system, number, "noop")
    with stand.working(system, SLOTS) as worker:
        wait_for(lambda: stand.record.count() > number // 20, START_S, f"{system.name}'s first tasks")
        first, cpu, used = stand.record.count(), worker.cpu_s(), stand.used()
        wait_for(lambda: stand.record.count() >= number, 300, f"{system.name}'s last task", pause_s=0.1)
        last, cpu, spent = stand.record.count(), worker.cpu_s() - cpu, stand.used() - used
        rss = worker.rss_mib()
        tasks = max(1, last - first)
        starts = [start for start, _ in stand.record.marks()][number // 20 :]
        time.sleep(2)  # what is committed late, and what follows
        finished = (stand.memory() - empty) / number
        idle_s = max(2.0, 6 * scale)
        cpu_before, before = worker.cpu_s(), stand.used()
        time.sleep(idle_s)
        idle_cpu, idle = worker.cpu_s() - cpu_before, stand.used() - before
    stand.reset()
    return {
        "drained/s": len(starts) / (starts[-1] - starts[0]) * 1e9,
        "worker CPU us": cpu / tasks * 1e6,
        "Redis CPU us": spent["cpu_s"] / tasks * 1e6,
        "commands": spent["commands"] / tasks,
        "round trips": spent["reads"] / tasks,
        "RSS MiB": rss,
        "bytes finished": finished,
        "idle calls/s": max(0.0, (idle["reads"] - 1) / idle_s),
        "idle CPU %": idle_cpu / idle_s * 100,
    }


def latency(stand: Stand, system: System, scale: float) -> Figures:
    """From the submission to the start of the handler, 50 a second, on an otherwise idle machine."""
    number = max(50, int(500 * scale))
    stand.reset()
    with stand.working(system, SLOTS):
        stand.produce(system, "--number", "5")
        wait_for(lambda: stand.record.count() >= 5, START_S, f"{system.name}'s first task")
        time.sleep(1)
        stand.produce(system, "--number", str(number), "--rate", "50")
        wait_for(lambda: stand.record.count() >= number + 5, 30, f"{system.name}'s last task")
    delays_ms = [(start - sent) / 1e6 for start, sent in stand.record.marks()[10:]]
    stand.reset()
    return {"p50 ms": percentile(delays_ms, 0.5), "p99 ms": percentile(delays_ms, 0.99)}


def naps(stand: Stand, system: System, scale: float) -> Figures:
    """Handlers that sleep 20 ms in 32 slots: of the ideal, in which no slot ever waits."""
    slots, number = system.nap_slots, max(64, int(system.naps * scale))
    stand.reset()
    _fill(stand, system, number, "nap")
    with stand.working(system, slots, **{systems.KIND: "nap"}):
        wait_for(lambda: stand.record.count() >= number, START_S + 120, f"{system.name}'s last nap")
    starts = [start / 1e9 for start, _ in stand.record.marks()]
    stand.reset()
    return {"naps of ideal": number * NAP_S / 32 / (starts[-1] - starts[0] + NAP_S)}


CASES: Mapping[str, Callable[[Stand, System, float], Figures]] = {
    "enqueue": enqueue,
    "drain": drain,
    "latency": latency,
    "naps": naps,
}


def _fill(stand: Stand, system: System, number: int, kind: str) -> None:
    arguments = ["--number", str(number), "--kind", kind]
    stand.produce(system, *arguments, *(["--many"] if system.has_many else []))
