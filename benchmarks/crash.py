"""How soon tasks run again whose worker was killed with SIGKILL while it ran them. Meanwhile nothing is submitted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from benchmarks.stand import Stand, stand, wait_for
from benchmarks.systems import KIND, System, system_of

SLOTS = 8
START_S = 60.0


def variants(names: Sequence[str]) -> list[tuple[str, System]]:
    """Return what is killed: every system as it comes, and dtq with a short lease too."""
    found = [(name, system_of(name)) for name in names]
    if "dtq" in names:
        system = system_of("dtq")
        short = {**system.settings, "DTQ_VISIBILITY_TIMEOUT_S": "2"}
        found.append(("dtq, lease of 2 s", replace(system, settings=short, recovers="the lease (2 s) and a second")))
    return found


def crash(names: Sequence[str], patience_s: float) -> Mapping[str, Mapping[str, object]]:
    """Kill a worker of each, all at the same time, each with a server of its own; wait for `patience_s` at most."""
    chosen = variants(names)
    with ThreadPoolExecutor(len(chosen)) as pool:
        found = list(pool.map(lambda one: _killed(one[1], patience_s), chosen))
    return {name: figures for (name, _), figures in zip(chosen, found, strict=True)}


def _killed(system: System, patience_s: float) -> Mapping[str, object]:
    number = 1 if system.nap_slots == 1 else SLOTS  # of one job at a time, one is in flight
    with stand() as own:
        own.produce(system, "--number", str(number), "--kind", "stuck")
        with own.working(system, SLOTS, **{KIND: "nap"}) as worker:
            wait_for(lambda: own.record.count() >= number, START_S, f"{system.name}'s tasks to run", pause_s=0.2)
            time.sleep(1)
            worker.kill()
        killed_at = time.monotonic_ns()
        (own.directory / "free").touch()
        with own.working(system, SLOTS, **{KIND: "nap"}):
            again = _wait_for_starts(own, killed_at, number, patience_s)
    return {
        "in flight": number,
        "run again": len(again),
        "first after s": again[0] if again else None,
        "last after s": again[-1] if len(again) >= number else None,
        "decided by": system.recovers,
    }


def _wait_for_starts(own: Stand, killed_at: int, number: int, patience_s: float) -> list[float]:
    give_up_at = time.monotonic() + patience_s
    while True:
        again = [(start - killed_at) / 1e9 for start, _ in own.record.marks() if start > killed_at]
        if len(again) >= number or time.monotonic() > give_up_at:
            return again
        time.sleep(0.2)


def as_table(found: Mapping[str, Mapping[str, object]], patience_s: float) -> str:
    """Return the table."""
    lines = ["| system | in flight | run again | first after | last after | decided by |", "|---|--:|--:|--:|--:|---|"]
    for name, figures in found.items():
        first, last = (_seconds(figures[key], patience_s) for key in ("first after s", "last after s"))
        lines.append(
            f"| {name} | {figures['in flight']} | {figures['run again']} | {first} | {last} | {figures['decided by']} |"
        )
    return "\n".join(lines)


def _seconds(value: object, patience_s: float) -> str:
    return f"{value:.1f} s" if isinstance(value, float) else f"not within {patience_s:g} s"
