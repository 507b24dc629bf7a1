"""The parts of the message queue by themselves: what is refused, what threads survive, who hears of room."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dtq.errors import MessageLost, RedisFull, RedisUnavailable, SubscriptionClosed
from dtq.mq import MessageQueue, Put
from dtq.mq.holdings import Holdings
from dtq.mq.message import Message
from dtq.mq.model import QueueOptions, priority_classes
from dtq.mq.operations import Operations
from dtq.mq.reader import Reader
from dtq.mq.renewer import Renewer
from dtq.mq.room import Room
from dtq.mq.store import Claimed
from dtq.redisio import CommandError
from tests.conftest import ProxyFactory
from tests.support.mq import QUEUE, Lab, receive_all
from tests.support.threads import in_thread
from tests.support.waiting import wait_until


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab(f"memory://{time.monotonic_ns()}")
    yield made
    made.close()


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"name": "Capitals"},
        {"name": ""},
        {"dead_topic": "with space"},
        {"visibility_timeout_s": 0},
        {"visibility_timeout_s": float("nan")},
        {"visibility_timeout_s": True},
        {"idle_ttl_s": 0},
        {"tombstone_ttl_s": -1},
        {"max_payload_bytes": 0},
        {"max_deliveries": -1},
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"use|no name"):
        QueueOptions(**{"name": QUEUE, **options})


@pytest.mark.parametrize(
    ("put", "error"),
    [
        (lambda queue: queue.put("a", b"", key=""), ValueError),
        (lambda queue: queue.put("a", b"", key="x" * 513), ValueError),
        (lambda queue: queue.put("a", b"", key="\ud800"), ValueError),
        (lambda queue: queue.put("a", b"", key=7), TypeError),
        (lambda queue: queue.put("a", "text"), TypeError),
        (lambda queue: queue.put("a", None), TypeError),
        (lambda queue: queue.put("with space", b""), ValueError),
        (lambda queue: queue.put("x" * 129, b""), ValueError),
        (lambda queue: queue.put("a", b"", max_size=-1), ValueError),
        (lambda queue: queue.put("a", b"", max_size=1.5), TypeError),
        (lambda queue: queue.put("a", b"", delay_s=-1), ValueError),
        (lambda queue: queue.put("a", b"", timeout_s=-1), ValueError),
        (lambda queue: queue.put_many([("a", b"good"), ("a", b"", "")]), ValueError),
        (lambda queue: queue.put_many([("a",)]), TypeError),
        (lambda queue: queue.subscribe([]), ValueError),
        (lambda queue: queue.subscribe("a"), ValueError),
        (lambda queue: queue.subscribe(["a", "a"]), ValueError),
        (lambda queue: queue.subscribe([f"t{number}" for number in range(1001)]), ValueError),
        (lambda queue: queue.subscribe(["a"], prefetch=0), ValueError),
        (lambda queue: queue.subscribe(["a"], prefetch=10_001), ValueError),
        (lambda queue: queue.peek("", 1), ValueError),
        (lambda queue: queue.purge("*"), ValueError),
    ],
)
def test_arguments_that_cannot_be_are_refused_and_nothing_is_stored(
    lab: Lab, put: Callable[[MessageQueue], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        put(lab.queue())
    assert lab.all_keys() == []


def test_topics_may_be_ordered_or_numbered() -> None:
    assert priority_classes(["b", "a"]) == [["b"], ["a"]]
    assert priority_classes({"a": 7, "b": -1, "c": 7}) == [["b"], ["a", "c"]]


def test_bytes_of_all_kinds_are_taken(lab: Lab) -> None:
    queue = lab.queue()
    assert queue.put_many([Put("a", bytearray(b"1")), ("a", memoryview(b"2"), None), ("a", b"3", "k")]) == [True] * 3
    with queue.subscribe(["a"]) as subscription:
        assert [message.data for message in receive_all(subscription, 3)] == [b"1", b"2", b"3"]


def test_a_script_takes_a_bounded_number_of_bytes(lab: Lab) -> None:
    queue = lab.queue(max_payload_bytes=4_000_000)
    asked: list[int] = []
    put = queue._store.put
    queue._store.put = lambda items, **options: asked.append(len(items)) or put(items, **options)  # type: ignore[method-assign,func-returns-value]
    assert queue.put_many([("a", b"x" * 3_000_000)] * 2 + [("a", b"")] * 150) == [True] * 152
    assert asked == [1, 100, 51]


# --- messages ---------------------------------------------------------------------------------------------------------


def test_a_message_that_was_lost_while_it_was_handled_is_told_in_the_log(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    queue = lab.queue()
    queue.put_many([("a", b"", "k"), ("a", b"", "l")])
    hand = lab.hand(queue, prefetch=2)
    first, second = hand.take(), hand.take()
    hand.leave()
    with first:
        pass
    with pytest.raises(KeyError), second:
        raise KeyError
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "message k was done, but belongs to another consumer by now"
    assert told[1].startswith("message l failed and could not be released: ")
    assert repr(first) == "<Message 'k' of 'a', delivery 1, 0 bytes>"


def test_a_message_is_settled_once(lab: Lab) -> None:
    queue = lab.queue()
    queue.put("a", b"")
    message = lab.hand(queue).take()
    assert message.acknowledge()
    assert not message.acknowledge()
    with pytest.raises(MessageLost, match="settled already"):
        message.release()
    assert not message.lost


def test_an_entry_that_was_deleted_cannot_be_released(lab: Lab) -> None:
    queue = lab.queue()
    queue.put("a", b"")
    message = lab.hand(queue).take()
    lab.server.call("XDEL", lab.stream("a"), message.entry)
    with pytest.raises(MessageLost):
        message.release("b")
    assert lab.length("b") == 0


def test_messages_and_subscriptions_belong_to_their_process(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = lab.queue()
    queue.put("a", b"")
    with queue.subscribe(["a"]) as subscription:
        message = subscription.receive(5)
        with monkeypatch.context() as child:
            child.setattr("os.getpid", lambda: 1)
            for call in (message.acknowledge, message.release, subscription.flush, subscription.receive, queue.stats):
                if call != queue.stats:  # reading is for all
                    with pytest.raises(RuntimeError, match="parent process"):
                        call()
            with pytest.raises(RuntimeError, match=r"client\.queue"):
                queue.put("a", b"")
            assert subscription.__exit__(None, None, None) is None
        assert message.acknowledge()


# --- holdings ---------------------------------------------------------------------------------------------------------


NEVER = float("inf")
"""When the claims of these messages end."""


def make_message(topic: str, number: int) -> Message:
    return Message(None, Claimed(topic, f"{number}-0", f"k{number}", b"", 0.0, 1))  # type: ignore[arg-type]


def test_what_is_lost_in_the_buffer_is_handed_to_nobody() -> None:
    holdings = Holdings([["a"]], prefetch=5)
    one, two, three = (make_message("a", number) for number in range(3))
    holdings.add([one, two, three], NEVER)
    holdings.lose(one)
    holdings.lose(one)
    assert holdings.take() is two
    holdings.lose(two)
    assert holdings.withdraw() == [three]
    holdings.add([make_message("a", 4)], NEVER)
    assert holdings.take() is None, "it is closed"
    assert holdings.empty
    assert holdings.held() == []


def test_what_is_done_is_forgotten_when_it_is_written_unless_it_was_claimed_anew() -> None:
    holdings = Holdings([["a"]], prefetch=5)
    message = make_message("a", 1)
    holdings.add([message], NEVER)
    holdings.take()
    holdings.finish_later(message)
    holdings.lose(message)
    again = make_message("a", 1)
    holdings.add([again], NEVER)
    assert holdings.done(5) == [message]
    holdings.written(1)
    assert holdings.held() == [again]
    holdings.forget(message)
    assert holdings.held() == [again]


def test_less_urgent_topics_wait_while_a_more_urgent_one_has_more_than_fits() -> None:
    holdings = Holdings([["high"], ["low"]], prefetch=2)
    assert holdings.rooms({"high", "low"}) == [("high", 2, 0), ("low", 2, 1)]
    holdings.add([make_message("high", 1), make_message("high", 2)], NEVER)
    assert holdings.rooms({"high", "low"}) == []
    assert holdings.demand({"high", "low"}) == "none"
    assert holdings.rooms({"low"}) == [("low", 2, 1)]
    holdings.take()
    assert holdings.demand({"high"}) == "low"
    assert not holdings.outranked
    assert Holdings([["a"]], prefetch=4).demand(set()) == "none"
    three = Holdings([["a"]], prefetch=4)
    three.add([make_message("a", number) for number in range(3)], NEVER)
    assert three.demand({"a"}) == "some"


def test_operations_of_callers_at_once_have_slots_of_their_own_which_are_used_again() -> None:
    operations = Operations()
    one, two = operations.take(), operations.take()
    assert one.slot != two.slot
    assert one.number < two.number
    operations.give_back(one)
    three = operations.take()
    assert three.slot == one.slot
    assert three.number > two.number


# --- threads ----------------------------------------------------------------------------------------------------------


def test_a_reader_outlives_a_step_that_fails_in_a_way_nobody_foresaw(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dtq.mq.reader.FAILED_PAUSE_S", 0.01)
    queue, failures = lab.queue(), [ZeroDivisionError(), RedisUnavailable("away", reason="unreachable")]
    step = Reader.step

    def failing(reader: Reader) -> None:
        if failures:
            raise failures.pop(0)
        step(reader)

    monkeypatch.setattr(Reader, "step", failing)
    with queue.subscribe(["a"]) as subscription:
        queue.put("a", b"")
        assert subscription.receive(5).acknowledge()
    assert "could not read" in caplog.text


def test_a_renewer_outlives_what_fails_and_tries_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dtq.mq.renewer.FAILED_PAUSE_S", 0.01)
    failures = [RedisFull("full"), ZeroDivisionError(), RedisUnavailable("away", reason="unreachable")]
    step = Renewer.step

    def failing(renewer: Renewer) -> None:
        if failures:
            raise failures.pop(0)
        step(renewer)

    monkeypatch.setattr(Renewer, "step", failing)
    queue = lab.queue()
    queue.put("a", b"")
    with queue.subscribe(["a"]) as subscription:
        subscription.acknowledge_later(subscription.receive(5))
        wait_until(lambda: lab.length("a") == 0, what="the writing")
    assert "could not write: full" in caplog.text
    assert "could not renew" in caplog.text


def test_what_cannot_be_written_later_is_kept_and_the_loss_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = lab.queue()
    queue.put_many([("a", b"")] * 2)
    hand = lab.hand(queue, prefetch=2)
    first, second = hand.take(), hand.take()
    lab.server.call("XCLAIM", lab.stream("a"), "workers", "other", 0, second.entry)
    hand.session.acknowledge_later(first)
    hand.session.acknowledge_later(second)
    with monkeypatch.context() as away:
        away.setattr(hand.session.store, "acknowledge", lambda *args: (_ for _ in ()).throw(RedisUnavailable("away")))
        with pytest.raises(RedisUnavailable):
            hand.session.flush()
    hand.session.flush()
    assert (first.lost, second.lost, lab.length("a")) == (False, True, 1)


def test_a_claim_that_took_what_is_held_already_hands_nothing_out_twice(lab: Lab) -> None:
    queue = lab.queue()
    queue.put("a", b"")
    hand = lab.hand(queue, prefetch=3)
    message = hand.take()
    lab.server.call("XGROUP", "DESTROY", lab.stream("a"), "workers")
    assert hand.none()
    assert message.acknowledge()


def test_a_bell_says_what_it_does_not_understand(mq_valkey: Lab) -> None:
    lab = mq_valkey
    hand = lab.hand(lab.queue())
    lab.server.call("DEL", lab.keys.mq_wake(QUEUE, "a"))
    lab.server.call("SET", lab.keys.mq_wake(QUEUE, "a"), "no stream")
    with pytest.raises(CommandError):
        hand.reader._bell.wait(0.01)
    lab.server.call("DEL", lab.keys.mq_wake(QUEUE, "a"))
    assert hand.reader._bell.wait(0.01), "it is made again"


def test_a_record_whose_message_something_else_deleted_does_not_keep_the_queue(lab: Lab) -> None:
    queue = lab.queue()
    queue.put_many([("a", b"")] * 5)
    queue.put("b", b"", key="k")
    lab.server.call("DEL", lab.stream("a"))
    lab.hand(queue).claim()
    assert lab.server.call("HKEYS", lab.keys.mq_keys(QUEUE)) == [b"k"]
    assert queue.stats().topics["_other"].counts["corrupt"] == 5


def test_closing_while_a_receiver_is_about_to_take_hands_it_nothing(lab: Lab) -> None:
    queue = lab.queue()
    queue.put("a", b"")
    subscription = queue.subscribe(["a"])
    with subscription:
        wait_until(lambda: lab.pending("a") == 1, what="the message to be ready")
        iterator = iter(subscription)
        subscription.close()
        assert list(iterator) == []
        with pytest.raises(SubscriptionClosed):
            subscription.receive()


def test_iteration_ends_when_the_subscription_is_left_by_another(lab: Lab) -> None:
    queue = lab.queue()
    subscription = queue.subscribe(["a"])
    subscription.__enter__()
    thread, outcome = in_thread(lambda: list(subscription))
    time.sleep(0.05)  # so that it waits
    subscription.__exit__(None, None, None)
    subscription.__exit__(None, None, None)
    thread.join(5)
    assert outcome == [[]]


# --- room -------------------------------------------------------------------------------------------------------------


def test_waiting_for_room_ends_by_itself_and_needs_no_redis(lab: Lab, flaky_proxy: ProxyFactory) -> None:
    away = Lab("redis://127.0.0.1:1")
    room = Room(away.server, "room", uniform=lambda: 0.9)
    started = time.monotonic()
    room.wait("a", 1, 0.25)
    assert 0.2 < time.monotonic() - started < 3
    away.client.close()


def test_of_several_that_wait_one_listens_and_tells_the_others(lab: Lab) -> None:
    room = Room(lab.server, "room", uniform=lambda: 0.0)
    ended: list[str] = []
    lock = threading.Lock()

    def wait(topic: str) -> None:
        room.wait(topic, 1, 5)
        with lock:
            ended.append(topic)

    waits = [in_thread(wait, topic) for topic in ("a", "a", "a", "b")]
    time.sleep(0.1)  # so that they wait
    lab.server.call("XADD", "room", "*", "topic", "a", "n", 2)
    wait_until(lambda: ended == ["a", "a"], what="two to be told", timeout_s=0.8)
    lab.server.call("XADD", "room", "*", "topic", "b", "n", 1)
    wait_until(lambda: ended == ["a", "a", "b"], what="the one of the other topic", timeout_s=0.8)
    for thread, _ in waits:
        thread.join(5)
    assert len(ended) == 4, "the last one looks again after a poll's time"
    lab.server.call("DEL", "room")
