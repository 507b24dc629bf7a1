"""The message queue: one producer and one subscription with four threads, in one process; a bare redis-py loop of the
same shape in the same run, which knows no keys, no bounds, no renewal and no delivery count.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import redis

from benchmarks.stand import client_of, stand
from dtq.client import Client
from dtq.mq import MessageQueue, Subscription

DATA = b"x" * 200
TOPIC = "work"
THREADS = 4
BATCH = 100
PREFETCH = 200


def mq_batch(scale: float) -> Mapping[str, float]:
    """`put_many` by hundreds, `acknowledge_later`."""
    number = max(5_000, int(50_000 * scale)) // BATCH * BATCH

    def produce(queue: MessageQueue) -> None:
        for _ in range(0, number, BATCH):
            queue.put_many([(TOPIC, DATA)] * BATCH)

    return _moved(number, produce, lambda subscription, message: subscription.acknowledge_later(message), batch=True)


def mq_plain(scale: float) -> Mapping[str, float]:
    """`put` and `acknowledge`, one at a time."""
    number = max(2_000, int(10_000 * scale))

    def produce(queue: MessageQueue) -> None:
        for _ in range(number):
            queue.put(TOPIC, DATA)

    return _moved(number, produce, lambda subscription, message: message.acknowledge(), batch=False)


def mq_latency(scale: float) -> Mapping[str, float]:
    """From the put into an idle queue until a receiver has the message, 50 a second; the bare loop by turns with it."""
    part = max(50, int(250 * scale))
    own: list[float] = []
    bare: list[float] = []
    with stand() as found, client_of(found) as client:
        queue = client.queue("bench")
        with queue.subscribe([TOPIC]) as subscription, _bare_reader(found.url) as (put, take):
            for _ in range(4):
                own += _delays_ms(part, lambda: queue.put(TOPIC, DATA), lambda: _take(subscription))
                bare += _delays_ms(part, put, take)
    figures: dict[str, float] = {}
    for name, delays in (("", own), ("bare ", bare)):
        delays.sort()
        figures |= {f"{name}p50 ms": statistics.median(delays), f"{name}p99 ms": delays[int(len(delays) * 0.99)]}
    return figures


def mq_idle(scale: float) -> Mapping[str, float]:
    """What a subscription that has nothing to do asks of Redis, with one topic and with two hundred."""
    seconds, figures = max(6.0, 20 * scale), {}
    for topics in (1, 200):
        names = [f"t{number}" for number in range(topics)]
        with stand() as found, client_of(found) as client, client.queue("bench").subscribe(names):
            time.sleep(2)  # a measured span, not a wait for something: the start is over
            before, cpu = _commands(client), time.process_time()
            time.sleep(seconds)
            figures[f"commands/s, {topics} topics"] = (_commands(client) - before) / seconds
            figures[f"CPU %, {topics} topics"] = (time.process_time() - cpu) / seconds * 100
    return figures


def _moved(
    number: int,
    produce: Callable[[MessageQueue], None],
    settle: Callable[[Subscription, Any], object],
    *,
    batch: bool,
) -> Mapping[str, float]:
    with stand() as found:
        with client_of(found) as client:
            queue = client.queue("bench")
            cpu, redis_cpu = time.process_time(), _redis_cpu(client)
            with queue.subscribe([TOPIC], prefetch=PREFETCH) as subscription:
                seconds = _run(number, lambda: produce(queue), lambda: _consume(subscription, settle))
                subscription.flush()
            assert queue.stats().depth == 0
            cpu, redis_cpu = time.process_time() - cpu, _redis_cpu(client) - redis_cpu
        bare = _bare(found.url, number, batch=batch)
    return {
        "messages/s": number / seconds,
        "bare messages/s": bare,
        "of bare": number / seconds / bare,
        "process CPU us/message": cpu / number * 1e6,
        "Redis CPU us/message": redis_cpu / number * 1e6,
    }


def _run(number: int, produce: Callable[[], None], consume: Callable[[], Callable[[], bool]]) -> float:
    """Run a producer and THREADS consumers until all is consumed. Returns the seconds that took."""
    left = iter(range(number))
    lock = threading.Lock()
    done = threading.Event()

    def work() -> None:
        take = consume()
        while not done.is_set():
            if take():
                with lock:
                    count = next(left, number)
                if count >= number - 1:
                    done.set()

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    produce()
    done.wait(300)
    seconds = time.perf_counter() - started
    for thread in threads:
        thread.join()
    return seconds


def _consume(subscription: Subscription, settle: Callable[[Subscription, Any], object]) -> Callable[[], bool]:
    def take() -> bool:
        try:
            message = subscription.receive(0.2)
        except TimeoutError:
            return False
        settle(subscription, message)
        return True

    return take


def _bare(url: str, number: int, *, batch: bool) -> float:
    """Return messages a second of XADD, XREADGROUP, XACK and XDEL by a stock client."""
    client = redis.Redis.from_url(url, protocol=2)
    client.delete("bare")
    client.xgroup_create("bare", "bare", id="0", mkstream=True)

    def produce() -> None:
        for _ in range(0, number, BATCH if batch else 1):
            pipeline = client.pipeline(transaction=False)
            for _ in range(BATCH if batch else 1):
                pipeline.xadd("bare", {"data": DATA})
            pipeline.execute()

    def consume() -> Callable[[], bool]:
        own = redis.Redis.from_url(url, protocol=2)
        ready: list[Any] = []
        finished: list[Any] = []

        def settle() -> None:
            if finished:
                pipeline = own.pipeline(transaction=False)
                pipeline.xack("bare", "bare", *finished)
                pipeline.xdel("bare", *finished)
                pipeline.execute()
                finished.clear()

        def take() -> bool:
            if not ready:
                settle()
                reply: Any = own.xreadgroup("bare", "one", {"bare": ">"}, count=BATCH, block=50)
                ready.extend(entry for entry, _ in reply[0][1]) if reply else None
            if not ready:
                return False
            finished.append(ready.pop())
            if not batch:
                settle()
            return True

        return take

    return number / _run(number, produce, consume)


def _delays_ms(number: int, put: Callable[[], object], take: Callable[[], Callable[[], object]]) -> list[float]:
    """Put one message after the other, each when the one before was received. take: returns what settles a message."""
    received: list[float] = []
    delays_ms = []

    def receive() -> None:
        for _ in range(number):
            settle = take()
            received.append(time.perf_counter())
            settle()

    thread = threading.Thread(target=receive)
    thread.start()
    for count in range(number):
        time.sleep(0.02)
        put_at = time.perf_counter()
        put()
        while len(received) <= count:
            time.sleep(0.0005)
        delays_ms.append((received[count] - put_at) * 1000)
    thread.join()
    return delays_ms


def _take(subscription: Subscription) -> Callable[[], object]:
    return subscription.receive(10).acknowledge


@contextmanager
def _bare_reader(url: str) -> Iterator[tuple[Callable[[], object], Callable[[], Callable[[], object]]]]:
    """Yield how a stock client puts a message, and how another takes it."""
    with redis.Redis.from_url(url, protocol=2) as client, redis.Redis.from_url(url, protocol=2) as own:
        client.xgroup_create("bare", "bare", id="0", mkstream=True)

        def take() -> Callable[[], object]:
            reply: Any = own.xreadgroup("bare", "one", {"bare": ">"}, count=1, block=10_000)
            entry = reply[0][1][0][0]
            return lambda: (own.xack("bare", "bare", entry), own.xdel("bare", entry))

        yield lambda: client.xadd("bare", {"data": DATA}), take


def _info(client: Client, section: str) -> dict[str, str]:
    text: str = client.server.call("INFO", section).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _redis_cpu(client: Client) -> float:
    info = _info(client, "cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def _commands(client: Client) -> float:
    """Commands that clients sent, but for the INFO of a look itself: what scripts run inside is none over the wire."""
    calls = 0.0
    for name, figures in _info(client, "commandstats").items():
        if name.removeprefix("cmdstat_") in ("evalsha", "eval", "ping"):
            calls += float(figures.split("calls=")[1].split(",")[0])
    blocked = _info(client, "commandstats").get("cmdstat_xreadgroup", "calls=0,")
    return calls + float(blocked.split("calls=")[1].split(",")[0])


CASES: Mapping[str, Callable[[float], Mapping[str, float]]] = {
    "mq_batch": mq_batch,
    "mq_plain": mq_plain,
    "mq_latency": mq_latency,
    "mq_idle": mq_idle,
}
