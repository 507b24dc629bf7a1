"""MQ-38: random histories of two consumers against a plain model: nothing is lost, nothing is owned twice, nothing
overfills a topic, and after every step Redis holds exactly what the model says.

Time is stepped by moving everything that Redis remembers into the past. STATE_MACHINE_EXAMPLES=500 runs that many.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dtq.errors import MessageLost, TopicFull
from dtq.keys import GROUP, PARKED
from dtq.mq import Message
from dtq.mq.store import ClaimReply
from tests.conftest import ServerProcess
from tests.support.lifetimes import check_keys
from tests.support.mq import QUEUE, Hand, Lab, mq_rules

EXAMPLES = int(os.environ.get("STATE_MACHINE_EXAMPLES", "0"))
STEP_S = 400
VISIBILITY_S = 1000
DELAY_S = 500
TOMBSTONE_S = 600
MOST_DELIVERIES = 4
LIMITS = {"high": 4, "low": 3, "dead": 0}
TOPICS = ("high", "low")
KEYS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
NAMES = ("A", "B")
FOREVER = float("inf")
T = TypeVar("T")

names = st.sampled_from(NAMES)
topics = st.sampled_from(TOPICS)


class Known:
    """A message as the model knows it."""

    def __init__(self, topic: str, data: bytes, number: int, due_s: int | None) -> None:
        self.topic = topic
        self.data = data
        self.number = number
        self.due_s = due_s
        """Seconds until a delayed one is ready."""
        self.owner: str | None = None
        self.idle_s = 0
        self.deliveries = 0
        self.fresh = True
        """Whether it stands where it was put and was never claimed."""

    def __repr__(self) -> str:
        return f"{self.topic} {self.data!r} owner={self.owner} idle={self.idle_s} due={self.due_s} n={self.deliveries}"

    @property
    def claimable(self) -> bool:
        return self.due_s is None and (self.owner is None or self.idle_s >= VISIBILITY_S)


class Machine(RuleBasedStateMachine):
    """Every rule does one thing to the queue and the same to the model, and compares the answers."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        self.lab = Lab(self.url)
        self.lab.server.call("FLUSHALL")
        self.queue = self.lab.queue(
            visibility_timeout_s=VISIBILITY_S, tombstone_ttl_s=TOMBSTONE_S, max_deliveries=MOST_DELIVERIES
        )
        self.model: dict[str, Known] = {}
        self.stones: dict[str, int] = {}
        self.paused: set[str] = set()
        self.numbers = itertools.count()
        self.hands: dict[str, Hand] = {}
        self.held: list[tuple[str, Message]] = []
        """Messages that somebody has in hand, with the consumer's name; also those of consumers that are gone."""
        for name in NAMES:
            self.come(name)

    def teardown(self) -> None:
        for hand in self.hands.values():
            hand.close()
        self.lab.client.close()

    def come(self, name: str) -> None:
        hand = self.hands[name] = Hand(self.queue, TOPICS, prefetch=2)
        hand.reader._quiet = SimpleNamespace(ms=lambda: 10**9, latest=FOREVER, note_time=noted)  # type: ignore[assignment]

    def owned_by(self, consumer: str) -> list[Known]:
        return [known for known in self.model.values() if known.owner == consumer]

    def size(self, topic: str) -> int:
        return sum(known.topic == topic for known in self.model.values())

    def refused(self, key: str) -> bool:
        return key in self.model or self.stones.get(key, 0) > 0

    def still_owns(self, consumer: str, message: Message) -> bool:
        """Whether this delivery is the last word on its message."""
        known = self.model.get(message.key)
        return (
            known is not None
            and known.owner == consumer
            and known.topic == message.topic
            and (self.entry(message.key) == message.entry)
        )

    def entry(self, key: str) -> str:
        place: bytes = self.lab.server.call("HGET", self.lab.keys.mq_keys(QUEUE), key)
        return place.decode().partition(" ")[2]

    # --- putting ------------------------------------------------------------------------------------------------------

    @rule(asked=st.lists(st.tuples(topics, st.sampled_from(KEYS), st.sampled_from((False, False, True))), min_size=2))
    def put(self, asked: list[tuple[str, str, bool]]) -> None:
        for topic, key, delayed in asked[:6]:
            self.put_one(topic, key, delayed)

    def put_one(self, topic: str, key: str, delayed: bool) -> None:
        number = next(self.numbers)
        data = b"%d" % number

        def call() -> bool:
            return self.queue.put(
                topic, data, key=key, max_size=LIMITS[topic], delay_s=DELAY_S if delayed else 0, block=False
            )

        if self.refused(key):
            assert call() is False
        elif self.size(topic) >= LIMITS[topic]:
            with pytest.raises(TopicFull):
                call()
        else:
            assert call() is True
            self.model[key] = Known(topic, data, number, DELAY_S if delayed else None)

    # --- taking -------------------------------------------------------------------------------------------------------

    def make_ready(self) -> None:
        for known in self.model.values():
            if known.due_s is not None and known.due_s <= 0:
                known.due_s = None

    def bury(self) -> None:
        """What a claim found to have been claimed too often is dead."""
        for entry in self.queue.dead.list():
            known = self.model[entry.key]
            if known.topic != "dead":
                assert known.claimable, known
                assert known.deliveries == MOST_DELIVERIES, known
                assert entry.reason == "max_deliveries"
                known.topic, known.owner, known.fresh = "dead", None, False

    def took(self, consumer: str, reply: ClaimReply) -> None:
        """The claim took what it might take: each was free, in the order of first deliveries."""
        for message in reply.messages:
            known = self.model[message.key]
            assert known.claimable, f"{consumer} took {known}"
            assert known.topic == message.topic
            assert known.topic not in self.paused
            assert known.data == message.data
            if known.fresh:
                elder = [one for one in self.model.values() if one.topic == known.topic and one.fresh]
                assert known.number == min(
                    (one.number for one in elder if one.due_s is None), default=known.number
                ) or any(one.due_s is None and one.number < known.number for one in elder)
            known.owner, known.idle_s, known.fresh = consumer, 0, False
            known.deliveries += 1
            assert message.deliveries == known.deliveries

    def claim_as(self, name: str, act: Callable[[], object]) -> None:
        hand = self.hands[name]
        replies: list[ClaimReply] = []
        claim = hand.session.store.claim

        def recording(*args: Any, **options: Any) -> ClaimReply:
            replies.append(claim(*args, **options))
            return replies[-1]

        self.make_ready()
        hand.session.store.claim = recording  # type: ignore[method-assign]
        try:
            act()
        finally:
            hand.session.store.claim = claim  # type: ignore[method-assign]
        for reply in replies:
            self.bury()
            self.took(hand.name, reply)

    def claim(self, name: str) -> None:
        hand = self.hands[name]
        self.claim_as(name, hand.claim)
        ready = {message.topic for message in hand.session.holdings.held() if not message.handed_out}
        for topic in TOPICS:  # nothing is left where there is room and nothing more urgent waits
            left = [one for one in self.model.values() if one.topic == topic and one.claimable]
            if topic in self.paused or (left and topic in ready):
                break
            assert not left, f"{name} left {left}"

    @rule(name=names)
    def claim_whose_reply_is_lost(self, name: str) -> None:
        """The consumer owns what it does not know of, until it settles that before its next claim."""
        hand = self.hands[name]
        rooms = hand.session.holdings.rooms(())

        def act() -> None:
            hand.session._last_claim += 1
            number = hand.session._last_claim
            hand.session.store.claim(hand.name, rooms, 0, number=number, look=True, latest=FOREVER)

        known_before = {message.key for message in hand.session.holdings.held()}
        self.claim_as(name, act)
        hand.session.settle()
        for key, known in self.model.items():
            if known.owner == hand.name and key not in known_before:
                known.owner = None
                known.deliveries -= 1

    @rule(name=names, number=st.integers(1, 3))
    def receive(self, name: str, number: int) -> None:
        for _ in range(number):
            message = self.hands[name].session.receive(0)
            if message is None:
                self.claim(name)
                message = self.hands[name].session.receive(0)
            if message is not None:
                self.held = [*self.held[-7:], (self.hands[name].name, message)]

    # --- settling -----------------------------------------------------------------------------------------------------

    def forget(self, key: str) -> None:
        del self.model[key]
        self.stones[key] = TOMBSTONE_S

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(("now", "later", "release", "release")))
    def settle(self, data: st.DataObject, how: str) -> None:
        consumer, message = one_of(data, self.held)
        if how == "now":
            self.acknowledge(consumer, message)
        elif how == "later":
            self.acknowledge_later(consumer, message)
        else:
            self.release(consumer, message, data.draw(topics), data.draw(st.booleans()))

    def acknowledge(self, consumer: str, message: Message) -> None:
        good = self.still_owns(consumer, message) and not message.settled
        assert message.acknowledge() is good
        if good:
            self.forget(message.key)

    def acknowledge_later(self, consumer: str, message: Message) -> None:
        good = self.still_owns(consumer, message) and not message.settled
        session = message._session
        session.acknowledge_later(message)
        session.flush()
        if good:
            self.forget(message.key)
            assert not message.lost

    def release(self, consumer: str, message: Message, topic: str, delayed: bool) -> None:
        def call() -> None:
            message.release(topic, max_size=LIMITS[topic], delay_s=DELAY_S if delayed else 0, timeout_s=0)

        if message.settled or not self.still_owns(consumer, message):
            with pytest.raises(MessageLost):
                call()
            return
        known = self.model[message.key]
        if topic != known.topic and self.size(topic) >= LIMITS[topic]:
            with pytest.raises(TopicFull):
                call()
            return
        call()
        known.topic, known.owner, known.due_s = topic, None, DELAY_S if delayed else None

    # --- coming, going, time ------------------------------------------------------------------------------------------

    @rule(name=names)
    def renew(self, name: str) -> None:
        hand = self.hands[name]
        held = hand.session.holdings.held()
        good = {message.id for message in held if self.still_owns(hand.name, message)}
        hand.renewer.renew()
        for message in held:
            assert message.lost is (message.id not in good)
            if not message.lost:
                self.model[message.key].idle_s = 0

    @rule(name=names, in_order=st.booleans())
    def go(self, name: str, in_order: bool) -> None:
        if in_order:
            self.leave(name)
        else:  # it crashes
            self.hands[name].close()
            self.come(name)

    def leave(self, name: str) -> None:
        hand = self.hands[name]
        ready = {message.key for message in hand.session.holdings.held() if not message.handed_out}
        hand.leave()
        hand.close()
        for key, known in self.model.items():
            if known.owner == hand.name:
                known.owner = None
                known.deliveries -= key in ready
        assert all(hand.name not in self.lab.consumer_names(topic) for topic in TOPICS)
        self.come(name)

    @rule()
    def time_passes(self) -> None:
        lab, server = self.lab, self.lab.server
        for topic in TOPICS:
            for entry, owner, idle, count in lab.pending_rows(topic):
                if owner != PARKED.encode():
                    aged = ("IDLE", idle + STEP_S * 1000, "RETRYCOUNT", count, "JUSTID")
                    server.call("XCLAIM", lab.stream(topic), GROUP, owner, 0, entry, *aged)
            for key in server.call("ZRANGE", lab.keys.mq_delayed(QUEUE, topic), 0, -1):
                server.call("ZINCRBY", lab.keys.mq_delayed(QUEUE, topic), -STEP_S * 1000, key)
            if server.call("ZSCORE", lab.keys.mq_due(QUEUE), topic) is not None:
                server.call("ZINCRBY", lab.keys.mq_due(QUEUE), -STEP_S * 1000, topic)
        for key in server.call("ZRANGE", lab.keys.mq_tombstones(QUEUE), 0, -1):
            server.call("ZINCRBY", lab.keys.mq_tombstones(QUEUE), -STEP_S * 1000, key)
        self.stones = {key: left_s - STEP_S for key, left_s in self.stones.items()}
        for known in self.model.values():
            known.idle_s += STEP_S
            if known.due_s is not None:
                known.due_s -= STEP_S

    # --- operating ----------------------------------------------------------------------------------------------------

    @rule(data=st.data(), what=st.sampled_from(("pause", "pause", "purge", "requeue", "requeue")))
    def operate(self, data: st.DataObject, what: str) -> None:
        if what == "pause":
            self.pause_or_resume(data.draw(topics))
        elif what == "purge":
            self.purge(data.draw(st.sampled_from((*TOPICS, "dead"))))
        else:
            self.requeue(data.draw(st.sampled_from(KEYS)))

    def pause_or_resume(self, topic: str) -> None:
        if topic in self.paused:
            assert self.queue.resume(topic)
            self.paused.remove(topic)
        else:
            assert self.queue.pause(topic)
            self.paused.add(topic)

    def purge(self, topic: str) -> None:
        gone = [key for key, one in self.model.items() if one.topic == topic and one.owner is None]
        assert self.queue.purge(topic) == len(gone)
        for key in gone:
            del self.model[key]

    def requeue(self, key: str) -> None:
        known = self.model.get(key)
        dead = known is not None and known.topic == "dead"
        assert self.queue.dead.requeue(key, "low") is dead
        if known is not None and dead:
            known.topic, known.deliveries = "low", 0

    # --- what is always true ------------------------------------------------------------------------------------------

    @invariant()
    def redis_holds_what_the_model_says(self) -> None:
        found: dict[str, tuple[str, str | None, int | None]] = {}
        for topic in (*TOPICS, "dead"):
            rows = {entry: (owner.decode(), count) for entry, owner, _, count in self.lab.pending_rows(topic)}
            for entry, fields in self.lab.server.call("XRANGE", self.lab.stream(topic), "-", "+"):
                owner, count = rows.pop(entry, (PARKED, 0))
                key = fields[1].decode()
                assert key not in found, f"{key} stands in two places"
                found[key] = (topic, None if owner == PARKED else owner, int(fields[7]) + count)
            assert not rows, f"pending without an entry in {topic}"
            for raw in self.lab.server.call("ZRANGE", self.lab.keys.mq_delayed(QUEUE, topic), 0, -1):
                assert raw.decode() not in found
                found[raw.decode()] = (topic, None, None)
        expected = {key: (known.topic, known.owner, known.deliveries) for key, known in self.model.items()}
        assert found.keys() == expected.keys()
        for key, (topic, owner, deliveries) in found.items():
            assert (topic, owner) == expected[key][:2], key
            assert deliveries in (None, expected[key][2]), key
        records = self.lab.server.call("HKEYS", self.lab.keys.mq_keys(QUEUE))
        assert {raw.decode() for raw in records} == expected.keys()

    @invariant()
    def no_topic_is_overfull(self) -> None:
        for topic in TOPICS:
            released_dead = sum(known.topic == topic for known in self.model.values())
            assert self.queue._queries.topic(QUEUE, topic).depth == released_dead

    @invariant()
    def nobody_has_in_hand_what_another_has_in_hand_too(self) -> None:
        owners: dict[str, str] = {}
        for hand in self.hands.values():
            for message in hand.session.holdings.held():
                if self.still_owns(hand.name, message):
                    assert owners.setdefault(message.key, hand.name) == hand.name

    @invariant()
    def keys_live_as_long_as_their_rules_say(self) -> None:
        check_keys(self.lab.server, self.lab.keys, mq_rules(self.lab))


def noted(redis_s: float, asked_at: float) -> None:
    """Here nobody compares clocks."""


def one_of(data: st.DataObject, found: Sequence[T]) -> T:
    return found[data.draw(st.integers(0, len(found) - 1))]


def test_mq_38_random_histories_agree_with_the_model(valkey: ServerProcess) -> None:
    class OnServer(Machine):
        url = valkey.url

    run_state_machine_as_test(
        OnServer,
        settings=settings(
            max_examples=EXAMPLES or 8,
            stateful_step_count=40 if EXAMPLES else 30,
            deadline=None,
            derandomize=not EXAMPLES,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
        ),
    )
