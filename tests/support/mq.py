"""The message queue in tests: a client on any kind of server, consumers without threads, and what stands in Redis."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dtq.client import Client
from dtq.keys import GROUP, Keys
from dtq.mq import Message, MessageQueue
from dtq.mq.model import priority_classes
from dtq.mq.reader import Reader
from dtq.mq.renewer import Renewer
from dtq.mq.session import Session
from dtq.redisio import CommandError
from dtq.settings import load_settings
from tests.support import PROJECT
from tests.support.dump import names
from tests.support.lifetimes import check_keys

QUEUE = "commands"


class Lab:
    """A client of its own namespace's server, and short ways to its message queue."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.url = url
        self.client = Client(settings=load_settings(env_file=None, redis_url=url, **settings), max_connections=64)
        self.server = self.client.server
        self.keys = Keys(self.client.settings.namespace)
        self.hands: list[Hand] = []

    def queue(self, **options: Any) -> MessageQueue:
        """The queue of these tests."""
        return self.client.queue(QUEUE, **options)

    def hand(
        self, queue: MessageQueue, *topics: str, prefetch: int = 1, classes: Mapping[str, int] | None = None
    ) -> Hand:
        """A consumer that does nothing unless told; gone with the test. classes: topics with their priorities."""
        hand = Hand(queue, classes or topics or ("a",), prefetch)
        self.hands.append(hand)
        return hand

    def stream(self, topic: str) -> str:
        return self.keys.mq_topic(QUEUE, topic)

    def length(self, topic: str) -> int:
        number: int = self.server.call("XLEN", self.stream(topic))
        return number

    def pending(self, topic: str) -> int:
        with contextlib.suppress(CommandError):  # nobody has claimed anything yet
            return int(self.server.call("XPENDING", self.stream(topic), GROUP)[0])
        return 0

    def pending_rows(self, topic: str) -> list[Any]:
        """Entry, owner, idle time in ms and number of deliveries of all that is pending."""
        with contextlib.suppress(CommandError):
            return list(self.server.call("XPENDING", self.stream(topic), GROUP, "-", "+", 10_000))
        return []

    def consumer_names(self, topic: str) -> list[str]:
        """The names in the group of a topic, the parked one left out."""
        with contextlib.suppress(CommandError):
            rows = self.server.call("XINFO", "CONSUMERS", self.stream(topic), GROUP)
            return [row[1].decode() for row in rows if row[1] != b"=parked"]
        return []

    def all_keys(self) -> list[bytes]:
        return names(self.server, self.keys.namespace)

    def close(self) -> None:
        """Every test ends so: no thread is left, and no key that its rule does not allow."""
        for hand in self.hands:
            hand.close()
        check_keys(self.server, self.keys, mq_rules(self))
        self.client.close()


class Hand:
    """One consumer without threads: it claims, renews and leaves when told, or never, like one that was killed."""

    def __init__(self, queue: MessageQueue, topics: Sequence[str] | Mapping[str, int], prefetch: int) -> None:
        store = queue._store
        self.session = Session(store, queue._room, priority_classes(topics), prefetch)
        self.reader = Reader(self.session, queue._quiet)
        self.renewer = Renewer(self.session)
        self.session.come()

    @property
    def name(self) -> str:
        return self.session.consumer

    def claim(self, *, look: bool = True) -> None:
        if look:
            self.reader._look_at = 0.0
        self.reader.step()

    def take(self) -> Message:
        """Claim until there is a message, and return it."""
        for _ in range(3):
            message = self.session.receive(0)
            if message is not None:
                return message
            if self.session.holdings.doubtful:  # a slow machine, and a short timeout
                self.renewer.renew()
            else:
                self.claim()
        raise AssertionError("there is nothing to take")

    def none(self) -> bool:
        """Whether a claim finds nothing."""
        self.claim()
        return self.session.receive(0) is None

    def leave(self) -> None:
        self.session.hand_back()

    def close(self) -> None:
        self.reader._bell.close()


def receive_all(subscription: Any, number: int, timeout_s: float = 10.0) -> list[Message]:
    """Return the next messages, each acknowledged."""
    found = []
    for _ in range(number):
        found.append(subscription.receive(timeout_s))
        assert found[-1].acknowledge(), found[-1]
    return found


def refuses(call: Callable[[], object], error: type[Exception]) -> float:
    """Return after how many seconds a call raised an error."""
    started = time.monotonic()
    with contextlib.suppress(error):
        call()
        raise AssertionError(f"{error.__name__} was not raised")
    return time.monotonic() - started


def mq_rules(lab: Lab) -> list[tuple[str, str]]:
    """The rows of the table of lifetimes that belong to the message queue, as they stand now."""
    holding = lab.server.call("HLEN", lab.keys.mq_keys(QUEUE)) > 0
    own = "always" if holding else "ttl"
    return [
        ("mq:queues", f"bounded:{lab.client.settings.max_queues}" if holding else "ttl"),
        (f"mq:{QUEUE}:(config|topics)", own),
        (f"mq:{QUEUE}:counts", "bounded:3000" if holding else "ttl"),
        *((f"mq:{QUEUE}:topic:{topic}", "always") for topic in _holding(lab)),
        (f"mq:{QUEUE}:(topic|wake):.*", "ttl"),
        (f"mq:{QUEUE}:(keys|due|later|delayed:.*)", "always"),
        (f"mq:{QUEUE}:paused", "bounded:1000"),
        (f"mq:{QUEUE}:(tombstones|wake|waiting|room|consumers)", "ttl"),
        (f"mq:{QUEUE}:(consumer|operation):.*", "ttl"),
        ("stream:audit", "bounded:10100"),
    ]


def _holding(lab: Lab) -> Iterator[str]:
    for topic in lab.server.call("ZRANGE", lab.keys.mq_topics(QUEUE), 0, -1):
        name = topic.decode()
        if lab.length(name):
            yield name


CHILD = """
import sys, time
import dtq
from dtq.settings import load_settings
client = dtq.Client(settings=load_settings(env_file=None, redis_url=sys.argv[1]))
queue = client.queue("commands", visibility_timeout_s=float(sys.argv[2]))
"""
"""How a program of a child begins: its arguments are a URL and a visibility timeout."""


class Child:
    """Another process with a queue; `program` goes on after CHILD and prints a line when there is something to know."""

    def __init__(self, url: str, visibility_timeout_s: float, program: str, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DTQ_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD + program, url, str(visibility_timeout_s), *arguments],
            env={**environment, "PYTHONPATH": str(PROJECT)},
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )

    def say(self, line: str) -> None:
        """Let it read a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def line(self) -> str:
        """Return the next line that it prints; empty at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        self.process.stdout.close()
        self.process.stdin.close()
