"""Putting: keys, capacity, waiting for room; on each kind of server, and on a Cluster."""

from __future__ import annotations

import threading
import time

import pytest

from dtq.errors import ConfigurationMismatch, PayloadTooLarge, TopicFull
from dtq.mq import Put
from tests.support.mq import Lab, receive_all, refuses
from tests.support.threads import in_thread


def test_mq_01_what_was_put_comes_in_order_with_its_data_key_and_topic(mq: Lab) -> None:
    queue = mq.queue()
    before = time.time()
    for number in range(3):
        assert queue.put("retry", b"data %d\x00\xff" % number, key=f"run-1:state-{number}")
    with queue.subscribe(["retry"]) as subscription:
        messages = receive_all(subscription, 3)
    assert [message.data for message in messages] == [b"data %d\x00\xff" % number for number in range(3)]
    assert [message.key for message in messages] == [f"run-1:state-{number}" for number in range(3)]
    assert {message.topic for message in messages} == {"retry"}
    assert {message.deliveries for message in messages} == {1}
    assert all(abs(message.first_put_at - before) < 60 for message in messages)
    assert not any(message.lost for message in messages)


def test_mq_02_03_04_a_key_is_refused_in_every_topic_until_it_is_acknowledged(mq: Lab) -> None:
    queue = mq.queue()
    assert queue.put("a", b"1", key="k")
    assert not queue.put("b", b"2", key="k"), "it waits"
    assert mq.length("a") == 1
    assert mq.length("b") == 0
    message = mq.hand(queue, "a").take()
    assert not queue.put("b", b"2", key="k"), "it is in flight"
    assert message.acknowledge()
    assert queue.put("b", b"3", key="k"), "there is no tombstone"
    queue.put("b", b"4", key="later", delay_s=60)
    assert not queue.put("a", b"5", key="later"), "it is delayed"
    counts = queue.stats().topics["b"].counts
    assert counts["duplicate"] == 2
    assert counts["stored"] == 2


def test_mq_05_a_tombstone_refuses_a_key_for_its_time_and_no_longer(mq: Lab) -> None:
    queue = mq.queue(tombstone_ttl_s=0.5)
    queue.put("a", b"1", key="k")
    assert mq.hand(queue).take().acknowledge()
    acknowledged = time.monotonic()
    assert not queue.put("a", b"2", key="k")
    while not queue.put("a", b"2", key="k"):
        time.sleep(0.02)
    assert 0.45 < time.monotonic() - acknowledged < 5


def test_tombstones_that_are_over_are_removed_by_later_ones(mq: Lab) -> None:
    queue, other = mq.queue(tombstone_ttl_s=0.01), mq.queue(tombstone_ttl_s=60)
    queue.put_many([("a", b"", f"k{number}") for number in range(15)])
    hand = mq.hand(queue, prefetch=20)
    for _ in range(15):
        hand.take().acknowledge()
    time.sleep(0.02)  # tombstones end by themselves
    other.put_many([("a", b"", f"l{number}") for number in range(2)])
    hand = mq.hand(other, prefetch=20)
    for _ in range(2):
        hand.take().acknowledge()
    left = mq.server.call("ZRANGE", mq.keys.mq_tombstones("commands"), 0, -1)
    assert {b"l0", b"l1"} <= set(left)
    assert len(left) <= 7
    assert mq.server.call("PTTL", mq.keys.mq_tombstones("commands")) > 50_000


def test_mq_06_a_full_topic_refuses_at_once_or_after_the_time_it_was_given(mq: Lab) -> None:
    queue = mq.queue()
    assert queue.put("a", b"1", max_size=1)
    mq.hand(queue).take()
    assert refuses(lambda: queue.put("a", b"2", max_size=1, block=False), TopicFull) < 0.3
    assert 0.25 < refuses(lambda: queue.put("a", b"2", max_size=1, timeout_s=0.3), TopicFull) < 3
    assert queue.put("b", b"2", max_size=1, block=False), "another topic has room"
    assert queue.stats().topics["a"].counts["full"] == 2


def test_mq_06_what_is_delayed_takes_room_too(mq: Lab) -> None:
    queue = mq.queue()
    queue.put("a", b"1", delay_s=60)
    with pytest.raises(TopicFull, match="holds 1 messages") as refused:
        queue.put("a", b"2", max_size=1, block=False)
    assert refused.value.results == [None]


def test_mq_07_fifty_threads_never_overfill_a_topic_and_all_of_them_get_in(mq: Lab) -> None:
    queue = mq.queue()
    puts = [in_thread(queue.put, "a", b"%d" % number, max_size=10) for number in range(50)]
    seen, most = set(), 0
    with queue.subscribe(["a"]) as subscription:
        for _ in range(50):
            message = subscription.receive(20)
            most = max(most, mq.length("a"))
            seen.add(message.data)
            assert message.acknowledge()
    for thread, outcome in puts:
        thread.join(10)
        assert outcome == [True]
    assert most <= 10
    assert len(seen) == 50


def test_mq_08_a_duplicate_is_reported_before_a_full_topic(mq: Lab) -> None:
    queue = mq.queue()
    queue.put("a", b"1", key="k")
    assert queue.put("a", b"2", key="k", max_size=1) is False


def test_mq_09_a_put_that_waits_goes_on_as_soon_as_an_acknowledgement_makes_room(
    mq: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtq.mq.room.POLL_S", 30)  # so that looking again is not what wakes it
    queue = mq.queue()
    queue.put("a", b"1", max_size=1)
    message = mq.hand(queue).take()
    thread, outcome = in_thread(queue.put, "a", b"2", max_size=1)
    time.sleep(0.2)  # so that it waits, and not just begins to
    assert not outcome
    message.acknowledge()
    acknowledged = time.monotonic()
    thread.join(5)
    assert outcome == [True]
    assert time.monotonic() - acknowledged < 1.5
    assert queue.stats().topics["a"].counts.get("full", 0) == 0, "it waited, it was not refused"


def test_prim_05_one_acknowledgement_lets_exactly_one_in(mq: Lab) -> None:
    """Capacity is exact with many producers; what is released needs no room."""
    queue = mq.queue()
    results: list[bool | str] = []

    def produce(number: int) -> None:
        for index in range(10):
            try:
                results.append(queue.put("a", b"", key=f"{number}-{index}", max_size=60, block=False))
            except TopicFull:
                results.append("full")

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results.count(True) == 60
    assert results.count("full") == 40
    assert mq.length("a") == 60
    hand = mq.hand(queue)
    hand.take().release()
    assert mq.length("a") == 60
    hand.take().acknowledge()
    assert queue.put("a", b"", max_size=60, block=False)
    with pytest.raises(TopicFull):
        queue.put("a", b"", max_size=60, block=False)


def test_prim_04_fifty_puts_of_one_key_at_once_make_one_message(mq: Lab) -> None:
    queue = mq.queue()
    puts = [in_thread(queue.put, f"t{number % 5}", b"", key="k") for number in range(50)]
    for thread, _ in puts:
        thread.join(20)
    assert sorted(outcome[0] for _, outcome in puts) == [False] * 49 + [True]
    assert queue.stats().depth == 1


def test_many_are_stored_in_order_each_by_itself(mq: Lab) -> None:
    queue = mq.queue()
    queue.put("a", b"", key="k5")
    answers = queue.put_many([Put("a", b"%d" % number, f"k{number}") for number in range(120)])
    assert answers == [number != 5 for number in range(120)]
    with queue.subscribe(["a"], prefetch=100) as subscription:
        assert [message.data for message in receive_all(subscription, 120)] == [
            b"",
            *(b"%d" % number for number in range(120) if number != 5),
        ]
    assert queue.put_many([]) == []


def test_of_many_that_do_not_fit_the_error_says_which_are_stored(mq: Lab) -> None:
    queue = mq.queue()
    items = [("a", b"", "one"), ("a", b"", "one"), ("b", b"", None), ("a", b"", "two"), ("a", b"", "three")]
    with pytest.raises(TopicFull) as refused:
        queue.put_many(items, max_size=2, block=False)
    assert refused.value.results == [True, False, True, True, None]
    assert refused.value.http_status == 429


def test_mq_31_a_queue_has_one_visibility_timeout(mq: Lab) -> None:
    mq.queue(visibility_timeout_s=2).put("a", b"")
    other = mq.queue(visibility_timeout_s=3)
    for use in (lambda: other.put("a", b""), lambda: other.subscribe(["a"]).__enter__()):
        with pytest.raises(ConfigurationMismatch, match="2 s, not 3 s"):
            use()
    assert mq.length("a") == 1


def test_mq_32_a_payload_that_is_one_byte_too_large_is_not_stored(mq: Lab) -> None:
    queue = mq.queue(max_payload_bytes=10)
    assert queue.put("a", b"x" * 10)
    with pytest.raises(PayloadTooLarge):
        queue.put("a", b"x" * 11)
    with pytest.raises(PayloadTooLarge):
        queue.put_many([("a", b"x"), ("a", b"x" * 11)])
    assert mq.length("a") == 1


def test_large_payloads_come_through_whole_and_not_too_many_at_once(mq: Lab) -> None:
    queue = mq.queue()
    data = [bytes([number]) * 700_000 for number in range(8)]
    assert queue.put_many([("a", memoryview(one)) for one in data]) == [True] * 8
    with queue.subscribe(["a"], prefetch=8) as subscription:
        assert [message.data for message in receive_all(subscription, 8)] == data
