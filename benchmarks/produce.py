"""`python -m benchmarks.produce SYSTEM`: submits, in the environment of a system, and prints what it took as JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from typing import Any

from benchmarks.handler import payload

BATCH = 100


def main() -> None:
    """Submit a number of tasks, or as many as the time allows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("system")
    parser.add_argument("--number", type=int, default=sys.maxsize)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=0.0, help="a second; 0: as fast as can be")
    parser.add_argument("--kind", default="noop")
    parser.add_argument("--many", action="store_true", help="by the call that takes many")
    parser.add_argument("--warm-up", type=int, default=0, help="submissions that do not count: connections, caches")
    asked = parser.parse_args()
    system: Any = importlib.import_module(f"benchmarks.systems.{asked.system}")
    for number in range(asked.warm_up):
        system.submit(payload(number, asked.kind))
    began, began_cpu, done = time.perf_counter(), time.process_time(), 0
    while done < asked.number and time.perf_counter() - began < asked.seconds:
        if asked.many:
            size = min(BATCH, asked.number - done)
            system.submit_many([payload(number, asked.kind) for number in range(done, done + size)])
            done += size
        else:
            if asked.rate:
                time.sleep(max(0.0, began + done / asked.rate - time.perf_counter()))
            system.submit(payload(done, asked.kind))
            done += 1
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    print(json.dumps({"number": done, "seconds": seconds, "cpu": cpu}))


if __name__ == "__main__":
    main()
