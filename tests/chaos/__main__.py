"""Run chaos for as long as it is told, then count. Exit status 1 when anything that must be zero is not."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from dtq.client import Client
from dtq.errors import RedisFull, RedisUnavailable
from dtq.settings import load_settings
from dtq.states import TERMINAL, Status
from tests.chaos.count import reckon
from tests.chaos.fleet import Fleet
from tests.chaos.hand import Hand

KINDS = ["quick"] * 12 + ["slow"] * 3 + ["flaky"] * 4 + ["isolated"]
RARE = {200: "poison", 100: "deaf", 300: "deaf"}
"""Which of four hundred tasks are of another kind."""
SETTLE_S = 90.0


class Producer:
    """Submits steadily, each task with a key of its own: what got no answer is sent again, and is still one task."""

    def __init__(self, client: Client, seed: int, rate: float) -> None:
        self.accepted: list[str] = []
        self._client = client
        self._random = random.Random(seed)
        self._pause_s = 1 / rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._pause_s):
            number += 1
            kind = RARE.get(number % 400) or self._random.choice(KINDS)
            self._submit(kind, f"task-{number}", self._random.randrange(10), self._random.choice([0, 0, 0, 0.3]))

    def _submit(self, kind: str, key: str, priority: int, delay_s: float) -> None:
        give_up_at = time.monotonic() + 30
        while time.monotonic() < give_up_at:
            try:
                task = self._client.submit(
                    kind, {"key": key}, idempotency_key=key, priority=priority, delay_seconds=delay_s
                )
            except (RedisUnavailable, RedisFull):
                time.sleep(0.1)
            else:
                self.accepted.append(task.task_id)
                return


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="repeats the harms of a run; drawn when not given")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rate", type=float, default=40.0, help="tasks submitted a second")
    parser.add_argument("--only", action="append", default=[], help="a harm by its name; may be given more than once")
    parser.add_argument("--keep", type=Path, default=None, help="keep the ledger and the logs in this directory")
    asked = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(1_000_000) if asked.seed is None else asked.seed
    print(f"chaos for {asked.seconds:g} s with {asked.workers} workers, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="dtq-chaos-") as made:
        directory = asked.keep or Path(made)
        directory.mkdir(parents=True, exist_ok=True)
        fleet = Fleet(directory, asked.workers)
        try:
            return _run(Hand(fleet, seed, asked.only), seed, asked.seconds, asked.rate)
        finally:
            fleet.close()


def _run(hand: Hand, seed: int, seconds: float, rate: float) -> int:
    fleet = hand.fleet
    settings = load_settings(
        env_file=None, redis_url=fleet.server.url, visibility_timeout_s=2.0, heartbeat_interval_s=0.5,
        max_queue_depth=100_000,
    )  # fmt: skip
    with Client(settings=settings) as client:
        producer = Producer(client, seed, rate)
        producer.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            hand.harm()
        producer.stop()
        settled_s = _settle(client, SETTLE_S)
        result = reckon(client, fleet, producer.accepted)
    print("harms:", dict(hand.done))
    print(f"all ended {settled_s:.1f} s after the last harm" if settled_s < SETTLE_S else "NOT ALL HAVE ENDED")
    print("\n".join(result.lines()))
    print("passed" if result.good else f"FAILED; --seed {seed} does the same harms again")
    return 0 if result.good else 1


def _settle(client: Client, limit_s: float) -> float:
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        try:
            counts = client.queries.counts("default")
        except RedisUnavailable:
            continue
        finally:
            time.sleep(0.2)
        if not any(counts[status] for status in Status if status not in TERMINAL):
            break
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
