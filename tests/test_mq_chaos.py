"""Processes that put and take, killed at random, behind proxies that lose replies and cut connections; then counted."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ProxyFactory
from tests.support.mq import Child, Lab
from tests.support.proxy import FlakyProxy
from tests.support.waiting import wait_until

TIMEOUT_S = 1.0
MAX_SIZE = 200
WANTED = 2_000

PRODUCE = """
import random
from dtq.errors import DtqError
name, log = sys.argv[3], open(sys.argv[4], "a", buffering=1)
for number in range(1_000_000):
    key = f"{name}-{number}"
    while True:
        try:
            queue.put(random.choice(["a", "b", "c"]), key.encode(), key=key, max_size=200,
                      delay_s=random.choice([0, 0, 0, 0.05]), timeout_s=5)
            break
        except DtqError as error:
            time.sleep(0.02)
    log.write(key + "\\n")
    time.sleep(0.002)
"""

CONSUME = """
import random, threading
from dtq.errors import DtqError
log = open(sys.argv[3], "a", buffering=1)
def work():
    for message in subscription:
        try:
            dice = random.random()
            if dice < 0.05:
                delay_s = random.choice([0, 0.05])
                message.release(random.choice([None, "a", "b"]), delay_s=delay_s, timeout_s=2, max_size=200)
                continue
            if dice < 0.1:
                time.sleep(0.05)
            log.write(f"{message.key} {message.data.decode()}\\n")
            if dice < 0.5:
                subscription.acknowledge_later(message)
            else:
                message.acknowledge()
        except DtqError:
            pass
with queue.subscribe({"a": 0, "b": 1, "c": 1}, prefetch=20) as subscription:
    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    threading.Timer(random.uniform(3, 9), subscription.close).start()
    for thread in threads:
        thread.join()
"""


class Chaos:
    """Two producers and three consumers that are killed and cut off, after every few messages one thing."""

    def __init__(self, lab: Lab, proxies: list[FlakyProxy], directory: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.proxies = proxies
        self.urls = [lab.url, *(proxy.url for proxy in proxies)]
        self.queue = lab.queue(visibility_timeout_s=TIMEOUT_S)
        self.produced, self.consumed = directory / "produced", directory / "consumed"
        self.produced.touch()
        self.consumed.touch()
        self.names = itertools.count()
        self.depths: list[int] = []
        self.timers: list[threading.Timer] = []

    def producer(self) -> Child:
        url, name = self.dice.choice(self.urls), f"p{next(self.names)}"
        return Child(url, TIMEOUT_S, PRODUCE, name, str(self.produced))

    def consumer(self) -> Child:
        return Child(self.dice.choice(self.urls), TIMEOUT_S, CONSUME, str(self.consumed))

    def run(self) -> None:
        producers, consumers = [self.producer() for _ in range(2)], [self.consumer() for _ in range(3)]
        ends_at, next_at = time.monotonic() + 120, 50
        try:
            while (number := len(self.produced.read_text().split())) < WANTED and time.monotonic() < ends_at:
                time.sleep(0.05)
                self.depths.append(max((topic.depth for topic in self.queue.stats().topics.values()), default=0))
                for index, one in enumerate(consumers):
                    if one.process.poll() is not None:
                        one.close()
                        consumers[index] = self.consumer()
                if number >= next_at:
                    next_at = number + self.dice.randrange(20, 60)
                    self.harm(producers, consumers)
        finally:
            for timer in self.timers:
                timer.join()
            for one in (*producers, *consumers):
                one.close()

    def harm(self, producers: list[Child], consumers: list[Child]) -> None:
        what = self.dice.random()
        if what < 0.1:
            victim = self.dice.randrange(len(producers))
            producers[victim].close()
            producers[victim] = self.producer()
        elif what < 0.35:
            victim = self.dice.randrange(len(consumers))
            consumers[victim].close()
            consumers[victim] = self.consumer()
        elif what < 0.5:  # longer than the timeout: it goes on when others have taken over
            self.stop_for_a_while(self.dice.choice(consumers))
        elif what < 0.6:
            self.hang_for_a_while(self.dice.choice(self.proxies))
        elif what < 0.85:
            self.dice.choice(self.proxies).drop_next_reply(b"EVALSHA", times=self.dice.randrange(1, 4))
        else:
            self.dice.choice(self.proxies).cut()

    def stop_for_a_while(self, child: Child) -> None:
        child.signal(signal.SIGSTOP)
        self.later(lambda: child.signal(signal.SIGCONT))

    def hang_for_a_while(self, proxy: FlakyProxy) -> None:
        proxy.hang()
        self.later(proxy.unhang)

    def later(self, end: Callable[[], None]) -> None:
        timer = threading.Timer(TIMEOUT_S * self.dice.uniform(0.8, 2), end)
        timer.start()
        self.timers.append(timer)

    def drain(self) -> None:
        """Take what is left."""
        with self.queue.subscribe(["a", "b", "c"], prefetch=100) as subscription, self.consumed.open("a") as log:
            while self.queue.stats().depth:
                with contextlib.suppress(TimeoutError):
                    message = subscription.receive(0.5)
                    log.write(f"{message.key} {message.data.decode()}\n")
                    message.acknowledge()

    def counts(self) -> tuple[set[str], Counter[str]]:
        """Return the keys of what was accepted, and how often each was handled."""
        lines = [line.split() for line in self.consumed.read_text().split("\n") if line]
        assert all(key == data for key, data in lines)
        return set(self.produced.read_text().split()), Counter(key for key, _ in lines)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_while_processes_die_and_connections_break(
    mq_valkey: Lab, flaky_proxy: ProxyFactory, tmp_path: Path, seed: int
) -> None:
    chaos = Chaos(mq_valkey, [flaky_proxy(mq_valkey.url) for _ in range(2)], tmp_path, seed)
    chaos.run()
    chaos.drain()
    accepted, handled = chaos.counts()
    assert len(accepted) > WANTED / 2
    assert accepted <= set(handled), sorted(accepted - set(handled))[:10]
    assert max(chaos.depths) <= MAX_SIZE
    counts = [topic.counts for topic in chaos.queue.stats().topics.values()]
    stored, acknowledged = (sum(one.get(what, 0) for one in counts) for what in ("stored", "acknowledged"))
    assert stored == acknowledged >= len(accepted), "each that was stored was acknowledged once, by one"
    assert mq_valkey.server.call("HLEN", mq_valkey.keys.mq_keys("commands")) == 0
    assert sum(handled.values()) < 1.5 * len(handled), "delivered again, but not for nothing"
    wait_until(lambda: sum(mq_valkey.pending(topic) for topic in "abc") == 0, what="nothing to be pending")
