"""Taking: order, priority, prefetch, threads, closing and leaving; on each kind of server, and on a Cluster."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from dtq.errors import SubscriptionClosed
from dtq.mq import Subscription
from tests.conftest import ProxyFactory
from tests.support.mq import Lab, receive_all
from tests.support.threads import in_thread
from tests.support.waiting import wait_until


def own_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("mq ")}


def test_mq_10_topics_are_taken_in_the_order_of_their_priority(mq: Lab) -> None:
    queue = mq.queue()
    for topic in ("scheduled", "retry", "scheduled", "retry"):
        queue.put(topic, b"")
    with queue.subscribe(["retry", "scheduled"]) as subscription:
        assert [message.topic for message in receive_all(subscription, 4)] == [
            "retry",
            "retry",
            "scheduled",
            "scheduled",
        ]


def test_mq_10_topics_of_one_class_take_turns(mq: Lab) -> None:
    queue = mq.queue()
    for topic in ("urgent", "a", "b"):
        queue.put_many([(topic, b"")] * 3)
    hand = mq.hand(queue, classes={"a": 1, "b": 1, "urgent": 0})
    topics = []
    for _ in range(9):
        message = hand.take()
        topics.append(message.topic)
        message.acknowledge()
    assert topics[:3] == ["urgent"] * 3
    assert all(abs(topics[:n].count("a") - topics[:n].count("b")) <= 1 for n in range(3, 10)), topics


def test_mq_11_with_a_prefetch_of_one_an_urgent_message_comes_within_the_next_two(mq: Lab) -> None:
    queue = mq.queue()
    queue.put_many([("low", b"")] * 100)
    with queue.subscribe({"low": 5, "high": 1}) as subscription:
        receive_all(subscription, 3)
        queue.put("high", b"")
        assert "high" in [message.topic for message in receive_all(subscription, 2)]
        wait_until(lambda: mq.pending("low") == 1, what="the one that is kept ready")


def test_with_a_larger_prefetch_what_is_urgent_overtakes_what_is_ready(mq: Lab) -> None:
    queue = mq.queue()
    queue.put_many([("low", b"")] * 60)
    with queue.subscribe(["high", "low"], prefetch=50) as subscription:
        receive_all(subscription, 1)
        queue.put("high", b"")
        received = 0
        while subscription.receive(5).topic == "low":
            received += 1
            time.sleep(0.003)  # a handler
        assert received < 40


def test_mq_14_what_is_left_is_there_for_others_at_once_and_in_its_old_place(mq: Lab) -> None:
    queue = mq.queue(visibility_timeout_s=300)
    queue.put_many([("a", b"%d" % number) for number in range(5)])
    first = queue.subscribe(["a"], prefetch=3)
    with first as subscription:
        handed_out = subscription.receive(5)
        wait_until(lambda: mq.pending("a") == 4, what="three to be ready")
    assert handed_out.lost
    assert mq.consumer_names("a") == []
    with queue.subscribe(["a"], prefetch=5) as subscription:
        left = time.monotonic()
        messages = receive_all(subscription, 5, timeout_s=5)
        assert time.monotonic() - left < 3
    assert [message.data for message in messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.deliveries for message in messages] == [2, 1, 1, 1, 1], "what nobody was handed was not delivered"
    assert not handed_out.acknowledge()


def test_prim_02_a_consumer_that_goes_away_hands_back_what_it_has_not_acknowledged(mq: Lab) -> None:
    queue = mq.queue(visibility_timeout_s=300)
    queue.put_many([("a", b"")] * 5)
    leaving, other = queue.subscribe(["a"], prefetch=5), queue.subscribe(["a"])
    with leaving:
        unacknowledged = [leaving.receive(5) for _ in range(4)]
        other.__enter__()
    left = time.monotonic()
    try:
        assert {message.entry for message in unacknowledged} <= {one.entry for one in receive_all(other, 5)}
        assert time.monotonic() - left < 2.5
    finally:
        other.__exit__(None, None, None)


def test_mq_15_four_threads_share_one_subscription_and_two_threads_of_its_own(mq: Lab) -> None:
    queue, number = mq.queue(), 1000 if mq.server.kind != "memory" else 200
    seen: Counter[bytes] = Counter()
    lock = threading.Lock()
    before = own_threads()

    def work(subscription: Subscription) -> None:
        for message in subscription:
            with message, lock:
                seen[message.data] += 1
                if len(seen) == number:
                    subscription.close()

    with queue.subscribe(["a"], prefetch=50) as subscription:
        workers = [in_thread(work, subscription) for _ in range(4)]
        queue.put_many([("a", b"%d" % one) for one in range(number)])
        assert len(own_threads() - before) == 2
        for thread, outcome in workers:
            thread.join(30)
            assert outcome == [None]
    assert own_threads() == before
    assert set(seen.values()) == {1}
    assert len(seen) == number
    assert mq.length("a") == 0


def test_mq_16_two_hundred_topics_need_two_threads_and_one_connection(mq: Lab) -> None:
    queue, before = mq.queue(), own_threads()
    topics = [f"topic-{number}" for number in range(200 if mq.server.kind != "memory" else 40)]
    with queue.subscribe(dict.fromkeys(topics, 0)) as subscription:
        queue.put_many([(topic, topic.encode()) for topic in topics])
        assert {message.topic for message in receive_all(subscription, len(topics))} == set(topics)
        assert len(own_threads() - before) == 2
        if mq.server.kind == "standalone":
            wait_until(lambda: b"blocked_clients:1\r" in mq.server.call("INFO", "clients"), what="one that is blocked")


def test_acknowledging_later_is_written_by_the_subscription_or_on_demand(mq: Lab) -> None:
    queue = mq.queue()
    queue.put_many([("a", b"")] * 10)
    with queue.subscribe(["a"], prefetch=10) as subscription:
        for _ in range(5):
            subscription.acknowledge_later(subscription.receive(5))
        wait_until(lambda: mq.length("a") == 5, what="the writing")
        last = subscription.receive(5)
        subscription.acknowledge_later(last)
        subscription.acknowledge_later(last)
        subscription.flush()
        assert mq.length("a") == 4
        assert last.settled
        assert not last.lost
        subscription.acknowledge_later(subscription.receive(5))
    assert mq.length("a") == 3, "leaving writes it too"
    with pytest.raises(SubscriptionClosed):
        subscription.flush()


def test_receiving_needs_an_open_subscription_and_has_a_time_limit(mq: Lab) -> None:
    queue = mq.queue()
    subscription = queue.subscribe(["a"])
    with pytest.raises(SubscriptionClosed):
        subscription.receive(1)
    with pytest.raises(SubscriptionClosed):
        next(iter(subscription))
    subscription.close()
    with subscription:
        started = time.monotonic()
        with pytest.raises(TimeoutError, match=r"0\.2 s"):
            subscription.receive(0.2)
        assert 0.15 < time.monotonic() - started < 3
        with pytest.raises(TimeoutError):
            subscription.receive(0)
        with pytest.raises(RuntimeError, match="entered already"):
            subscription.__enter__()
        waits = [in_thread(subscription.receive) for _ in range(3)]
        time.sleep(0.05)
        subscription.close()
        subscription.close()
        for thread, outcome in waits:
            thread.join(5)
            assert isinstance(outcome[0], SubscriptionClosed)
        with pytest.raises(SubscriptionClosed):
            subscription.receive(0)
        queue.put("a", b"late")
    with subscription:
        assert subscription.receive(5).data == b"late", "entering again works"


def test_an_idle_subscription_of_an_empty_queue_looks_after_it_without_a_fault(
    mq: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    with mq.queue().subscribe(["a"]) as subscription, pytest.raises(TimeoutError):
        subscription.receive(0.2)
    assert mq.hand(mq.queue()).none()
    assert caplog.records == []


def test_closing_gives_others_what_nobody_was_handed_before_it_leaves(mq: Lab) -> None:
    queue = mq.queue()
    queue.put_many([("a", b"%d" % number) for number in range(4)])
    with queue.subscribe(["a"], prefetch=3) as subscription:
        held = subscription.receive(5)
        wait_until(lambda: mq.pending("a") == 4, what="the rest to be ready")
        subscription.close()
        with queue.subscribe(["a"]) as other:
            assert [message.data for message in receive_all(other, 3, timeout_s=5)] == [b"1", b"2", b"3"]
        assert held.acknowledge(), "what is in hand is settled as before"


def test_mq_28_an_exception_in_the_block_releases_the_message_and_goes_on(mq: Lab) -> None:
    queue = mq.queue()
    queue.put("a", b"1", key="k")
    with queue.subscribe(["a"]) as subscription:
        message = subscription.receive(5)
        with pytest.raises(KeyError), message:
            raise KeyError("k")
        again = subscription.receive(5)
        assert (again.key, again.data, again.deliveries) == ("k", b"1", 2)
        assert again.first_put_at == message.first_put_at
        with again:
            pass
        assert mq.length("a") == 0
        queue.put("a", b"2")
        with subscription.receive(5) as settled:
            settled.release("b")
        assert mq.length("b") == 1, "what was settled in the block is not settled again"


@pytest.fixture
def alarm_closes() -> Iterator[list[Subscription]]:
    """A subscription in the list is closed by the handler of SIGALRM."""
    subscriptions: list[Subscription] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: subscriptions[0].close())
    yield subscriptions
    signal.signal(signal.SIGALRM, before)


def test_mq_29_closing_from_a_signal_handler_ends_the_loop(mq: Lab, alarm_closes: list[Subscription]) -> None:
    queue = mq.queue()
    queue.put("a", b"")
    handled = 0
    with queue.subscribe(["a"]) as subscription:
        alarm_closes.append(subscription)
        for message in subscription:
            with message:
                handled += 1
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                started = time.monotonic()
        assert time.monotonic() - started < 1.2 + 2  # and a slow machine
    assert handled == 1


def test_consumers_are_listed_while_they_are_there(mq: Lab) -> None:
    queue = mq.queue()
    assert queue.consumers() == []
    with queue.subscribe(["a", "b"]):
        (consumer,) = queue.consumers()
        assert consumer.topics == ["a", "b"]
        assert queue.stats().consumers == 1
        assert consumer.as_json()["process"] == consumer.process
        assert abs(consumer.seen_at - consumer.since) < 60
    assert queue.consumers() == []
    assert queue.stats().consumers == 0
    hand = mq.hand(queue, "a")
    mq.server.call("DEL", mq.keys.mq_consumer("commands", hand.name))
    assert queue.consumers() == [], "its record has gone"


def test_leaving_with_much_in_hand_gives_back_all_of_it_in_bounded_scripts(mq_valkey: Lab) -> None:
    queue, topics = mq_valkey.queue(), ["a", "b"]
    for topic in topics:
        queue.put_many([(topic, b"")] * 700)
    with queue.subscribe({"a": 0, "b": 0}, prefetch=700) as subscription:
        held = [subscription.receive(5) for _ in range(400)]
        wait_until(lambda: sum(map(mq_valkey.pending, topics)) == 1400, what="the rest to be ready", timeout_s=15)
    assert all(message.lost for message in held)
    assert [mq_valkey.consumer_names(topic) for topic in topics] == [[], []]
    counts = [row[3] for topic in topics for row in mq_valkey.pending_rows(topic)]
    assert (counts.count(1), counts.count(0)) == (400, 1000)
    assert sum(queue.purge(topic) for topic in topics) == 1400


def test_an_idle_subscription_asks_at_most_twice_a_second_however_many_topics_it_has(
    mq_valkey: Lab, flaky_proxy: ProxyFactory
) -> None:
    proxy = flaky_proxy(mq_valkey.url)
    lab = Lab(proxy.url)
    for visibility_timeout_s, most in ((30, 3), (1, 9)):  # with a short one it has to look more often
        mq_valkey.server.call("FLUSHALL")
        with lab.queue(visibility_timeout_s=visibility_timeout_s).subscribe([f"t{number}" for number in range(200)]):
            wait_until(lambda: b"blocked_clients:1\r" in mq_valkey.server.call("INFO", "clients"), what="the wait")
            proxy.commands.clear()
            time.sleep(3.5)  # a measured span
            assert len(proxy.commands) <= most
    lab.client.close()
