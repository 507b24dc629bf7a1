"""Delays, looking, operating, and how long keys live; on each kind of server, and on a Cluster."""

from __future__ import annotations

import time

import pytest
from redis.crc import key_slot

from dtq.audit import AuditFilter, read_audit
from dtq.errors import NewerSchema, TooManyQueues
from dtq.model import Actor
from dtq.mq.queries import MessageQueries
from tests.support.mq import QUEUE, Lab, receive_all
from tests.support.waiting import wait_until


def queries(mq: Lab) -> MessageQueries:
    return MessageQueries(mq.server, mq.client.settings)


def test_delayed_messages_are_made_ready_on_time_by_any_subscription_of_the_queue(mq: Lab) -> None:
    queue = mq.queue()
    with queue.subscribe(["other"]):
        put_at = time.time()
        queue.put("b", b"", delay_s=60)
        queue.put("a", b"", delay_s=0.3)
        assert mq.length("a") == 0
        wait_until(lambda: mq.length("a") == 1, what="the message")
        assert 0.28 < time.time() - put_at < 2
        assert (queue.stats().topics["b"].delayed, mq.length("b")) == (1, 0)


def test_delayed_messages_come_in_the_order_of_their_times(mq: Lab) -> None:
    queue = mq.queue()
    for delay_s in (0.5, 0.05, 0.25):
        queue.put("a", str(delay_s).encode(), delay_s=delay_s)
    time.sleep(0.6)  # all are due
    with queue.subscribe(["a"], prefetch=5) as subscription:
        assert [message.data for message in receive_all(subscription, 3)] == [b"0.05", b"0.25", b"0.5"]


def test_many_that_are_due_at_once_are_made_ready_over_several_claims(mq: Lab) -> None:
    queue = mq.queue()
    queue.put_many([(f"t{number % 3}", b"") for number in range(120)], delay_s=0.01)
    time.sleep(0.05)
    hand = mq.hand(queue, "x")
    hand.claim()
    assert sum(mq.length(f"t{number}") for number in range(3)) == 50
    hand.claim()
    hand.claim()
    assert sum(mq.length(f"t{number}") for number in range(3)) == 120
    assert not mq.server.call("EXISTS", mq.keys.mq_due(QUEUE), mq.keys.mq_later(QUEUE))


def test_a_delayed_message_whose_data_is_lost_frees_its_key(mq: Lab) -> None:
    queue = mq.queue()
    queue.put("a", b"", key="k", delay_s=0.01)
    queue.put("a", b"", key="l", delay_s=60)
    mq.server.call("HDEL", mq.keys.mq_later(QUEUE), "k", "l")
    time.sleep(0.02)
    assert mq.hand(queue).none()
    assert queue.put("a", b"", key="k")
    assert queue.get("l") is None
    assert queue.put("a", b"", key="l"), "what something else has deleted is not known"
    assert queue.stats().topics["a"].counts["corrupt"] == 2


def test_a_message_can_be_found_by_its_key_wherever_it_is(mq: Lab) -> None:
    queue = mq.queue()
    queue.put("a", b"data", key="k")
    queue.put("b", b"later\x00\xff", key="l", delay_s=60)
    waiting, delayed = queue.get("k"), queue.get("l")
    assert waiting is not None
    assert delayed is not None
    assert (waiting.state, waiting.topic, waiting.data, waiting.deliveries, waiting.consumer) == (
        *("waiting", "a", b"data", 0, None),
    )
    assert waiting.first_put_at is not None
    assert waiting.age_s is not None
    assert abs(waiting.age_s) < 60
    assert (delayed.state, delayed.topic, delayed.data) == ("delayed", "b", b"later\x00\xff")
    assert delayed.due_at is not None
    assert delayed.first_put_at is not None
    assert 59 < delayed.due_at - delayed.first_put_at < 61
    assert delayed.as_json()["data"] == "later\x00\\xff"
    hand = mq.hand(queue)
    hand.take()
    held = queue.get("k")
    assert held is not None
    assert (held.state, held.deliveries, held.consumer) == ("in_flight", 1, hand.name)
    assert queue.get("unknown") is None
    mq.server.call("DEL", mq.stream("a"))
    assert queue.get("k") is None


def test_peeking_shows_what_comes_next_and_takes_nothing(mq: Lab) -> None:
    queue = mq.queue()
    queue.put_many([("a", b"%d" % number, f"k{number}") for number in range(4)])
    queue.put("a", b"later", key="l", delay_s=60)
    mq.server.call("XADD", mq.stream("a"), "*", "what", "ever")
    first, hand = mq.hand(queue), mq.hand(queue)
    first.take()
    hand.take()
    hand.leave()
    shown = queue.peek("a")
    assert [(one.key, one.state) for one in shown] == [
        *[("k1", "waiting"), ("k2", "waiting"), ("k3", "waiting"), ("", "corrupt")],
        *[("k0", "in_flight"), ("l", "delayed")],
    ]
    assert [one.key for one in queue.peek("a", 2)] == ["k1", "k2"]
    assert [one.key for one in queue.peek("a", 5)][-1] == "k0"
    assert queue.peek("a", 0) == []
    assert queue.peek("nothing") == []
    assert queries(mq).peek(QUEUE, "a", 6, most_bytes=2)[-1].data == b"la"
    assert queue.stats().topics["a"].waiting == 4


def test_stats_tell_what_stands_where_and_what_was_counted(mq: Lab) -> None:
    queue = mq.queue(visibility_timeout_s=7)
    assert queue.stats().topics == {}
    assert queue.topics() == []
    queue.put_many([("a", b"")] * 3)
    queue.put("b", b"", delay_s=60)
    assert queue.stats().visibility_timeout_s == 7
    mq.hand(queue).take()
    stats = queue.stats()
    a = stats.topics["a"]
    assert (a.waiting, a.in_flight, a.delayed, a.depth) == (2, 1, 0, 3)
    assert a.oldest_waiting_s is not None
    assert stats.topics["b"].oldest_waiting_s is None
    assert (stats.depth, queue.topics()) == (4, ["a", "b"])
    shown = stats.as_json()
    assert shown["topics"][0]["counts"]["stored"] == 3
    assert shown["topics"][1]["delayed"] == 1


def test_the_oldest_that_waits_may_be_one_that_was_handed_back_or_released(mq: Lab) -> None:
    queue = mq.queue()

    def is_as_old_as(key: str) -> bool:
        found, oldest_s = queue.get(key), queue.stats().topics["a"].oldest_waiting_s
        assert found is not None
        assert found.first_put_at is not None
        assert oldest_s is not None
        return abs(queue._store.now() - oldest_s - found.first_put_at) < 0.1

    queue.put("a", b"", key="elder")
    time.sleep(0.3)  # so that they can be told apart
    queue.put("a", b"", key="younger")
    hand = mq.hand(queue)
    hand.take()
    wait_until(lambda: is_as_old_as("younger"), what="the age of what is not in flight")
    hand.leave()
    wait_until(lambda: is_as_old_as("elder"), what="the age of what was handed back")


def test_no_count_is_below_zero_when_something_else_deletes_what_is_in_flight(mq: Lab) -> None:
    queue = mq.queue()
    queue.put_many([("a", b"")] * 3)
    for _ in range(2):
        mq.server.call("XDEL", mq.stream("a"), mq.hand(queue).take().entry)
    found = queue.stats().topics["a"]
    assert found.depth == 1, "as max_size counts"
    assert found.waiting >= 0


def test_for_metrics_topics_that_are_counted_apart_are_told_apart_and_the_others_added_up(mq: Lab) -> None:
    queue = mq.queue()
    queue.put_many([("a", b"")] * 3 + [("b", b"")] * 2)
    queue.pause("b")
    mq.server.call("HINCRBY", mq.keys.mq_counts(QUEUE), "gone stored", 5)
    mq.server.call("HSET", mq.keys.mq_counts(QUEUE), "=", 200)
    queue.put("beyond", b"")
    (stats,) = queries(mq).figures()
    assert list(stats.topics) == ["a", "b", "gone", "_other"]
    other = stats.topics["_other"]
    assert (other.waiting, other.counts) == (1, {"stored": 1})
    assert other.oldest_waiting_s is not None
    assert (stats.topics["gone"].depth, stats.topics["gone"].counts) == (0, {"stored": 5})
    assert set(queue.stats().topics) == {"a", "b", "beyond", "_other"}
    assert queue.stats().topics["_other"].counts == {"stored": 1 + 5}
    assert [one.queue for one in queries(mq).all_stats()] == [QUEUE]


def test_for_metrics_the_eldest_queues_are_told_apart_and_the_others_added_up(
    mq_valkey: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtq.mq.queries.MOST_QUEUES_APART", 1)
    for name in ("zebra", "ant", "bee"):
        mq_valkey.client.queue(name).put("a", b"")
        time.sleep(0.002)  # in the order of their milliseconds
    first, other = queries(mq_valkey).figures()
    assert (first.queue, other.queue, list(other.topics)) == ("zebra", "_other", ["_other"])
    assert other.topics["_other"].counts == {"stored": 2}
    for name in ("zebra", "ant", "bee"):
        mq_valkey.client.queue(name).purge("a")
    mq_valkey.server.call("FLUSHALL")


def test_a_paused_topic_is_claimed_by_nobody_until_it_is_resumed(mq: Lab) -> None:
    queue = mq.queue()
    ann = Actor("cli:ann", reason="a deploy", request_id="r1")
    assert queue.pause("a", actor=ann)
    assert not queue.pause("a")
    queue.put("a", b"1")
    queue.put("b", b"2")
    with queue.subscribe(["a", "b"]) as subscription:
        assert receive_all(subscription, 1)[0].topic == "b"
        with pytest.raises(TimeoutError):
            subscription.receive(0.2)
        paused = queue.stats().topics["a"]
        assert paused.paused is not None
        assert (paused.paused["by"], paused.paused["reason"]) == ("cli:ann", "a deploy")
        assert paused.as_json()["pause"]["at"].endswith("Z")
        assert queue.resume("a")
        assert receive_all(subscription, 1)[0].topic == "a"
    assert not queue.resume("a")
    entries = read_audit(mq.server, mq.keys, AuditFilter(), 10, None).entries
    assert [(entry.action, entry.target, entry.actor) for entry in entries] == [
        ("mq.resume", "commands/a", "client"),
        ("mq.pause", "commands/a", "cli:ann"),
    ]
    assert (entries[1].reason, entries[1].request_id) == ("a deploy", "r1")


def test_purging_removes_what_waits_and_leaves_what_is_in_flight(mq: Lab) -> None:
    queue = mq.queue()
    queue.put_many([("a", b"", f"k{number}") for number in range(130)])
    queue.put_many([("a", b"", f"l{number}") for number in range(130)], delay_s=60)
    mq.server.call("XADD", mq.stream("a"), "*", "what", "ever")
    queue.put("b", b"", delay_s=60)
    hand, other = mq.hand(queue), mq.hand(queue)
    held = hand.take()
    other.take()
    other.leave()
    assert queue.purge("a", actor=Actor("cli:ann")) == 260
    assert queue.purge("a") == 0
    assert (mq.length("a"), queue.stats().topics["b"].delayed) == (1, 1)
    assert queue.put_many([("a", b"", "k1"), ("a", b"", "l1"), ("a", b"", held.key)]) == [True, True, False]
    assert held.acknowledge()
    (entry,) = read_audit(mq.server, mq.keys, AuditFilter(), 10, None).entries
    assert (entry.action, entry.target, entry.count, entry.actor) == ("mq.purge", "commands/a", 260, "cli:ann")
    assert queue.stats().topics["a"].counts["purged"] == 260


def test_mq_34_all_keys_are_in_one_slot(mq: Lab) -> None:
    queue = mq.queue(tombstone_ttl_s=60)
    queue.put("a", b"", max_size=1)
    queue.put("b", b"", delay_s=60)
    queue.pause("c")
    with queue.subscribe(["a"]) as subscription:
        subscription.receive(5).acknowledge()
        found = mq.all_keys()
    assert len(found) > 10
    if mq.server.kind == "cluster":
        assert len({key_slot(key) for key in found}) == 1


def test_mq_36_what_is_empty_and_idle_disappears_and_comes_again(mq_valkey: Lab) -> None:
    queue = mq_valkey.queue(idle_ttl_s=0.4)
    for _ in range(2):
        assert queue.put("a", b"", key="k")
        assert queue.put("b", b"", key="l", delay_s=60)
        time.sleep(0.5)
        assert queue.topics() == ["a", "b"], "what holds messages stays"
        with queue.subscribe(["a"]) as subscription:
            receive_all(subscription, 1)
        assert queue.purge("b") == 1
        mq_valkey.server.call("DEL", mq_valkey.keys.audit())
        wait_until(lambda: mq_valkey.all_keys() == [], what="the end of all keys")
    assert queries(mq_valkey).queues() == []


def test_a_queue_that_is_idle_stays_as_long_as_somebody_subscribes_to_it(mq: Lab) -> None:
    queue = mq.queue(idle_ttl_s=0.1, visibility_timeout_s=9)
    with queue.subscribe(["a"]) as subscription:
        time.sleep(0.2)
        assert queries(mq).exists(QUEUE)
        assert mq.server.call("PTTL", mq.keys.mq_config(QUEUE)) > 10_000
        queue.put("a", b"")
        receive_all(subscription, 1, timeout_s=2)
    wait_until(lambda: not queries(mq).exists(QUEUE), what="the end")


def test_queues_are_listed_and_have_a_bound(mq: Lab) -> None:
    limited = Lab(mq.url, max_queues=2)
    try:
        for name in ("one", "two"):
            limited.client.queue(name, idle_ttl_s=0.05 if name == "one" else 60).put("a", b"")
        assert queries(mq).queues() == ["one", "two"]
        with pytest.raises(TooManyQueues):
            limited.client.queue("three").put("a", b"")
        assert limited.client.queue("one", idle_ttl_s=0.05).purge("a") == 1
        wait_until(lambda: queries(mq).queues() == ["two"], what="the end of one")
        assert limited.client.queue("three").put("a", b""), "it has made room"
        assert queries(mq).queues() == ["three", "two"]
        for name in ("two", "three"):
            limited.client.queue(name).purge("a")
    finally:
        mq.server.call("DEL", *mq.all_keys())
        limited.client.close()


def test_a_queue_of_a_newer_version_is_left_alone(mq: Lab) -> None:
    queue = mq.queue()
    queue.put("a", b"")
    mq.server.call("HSET", mq.keys.mq_config(QUEUE), "v", 2)
    with pytest.raises(NewerSchema):
        queue.put("a", b"")
    with pytest.raises(NewerSchema), queue.subscribe(["a"]):
        pass
    assert mq.length("a") == 1


def test_the_index_of_topics_forgets_those_that_are_gone(mq: Lab) -> None:
    queue = mq.queue(idle_ttl_s=0.05)
    queue.put("stays", b"")
    for number in range(6):
        queue.put(f"t{number}", b"")
        mq.hand(queue, f"t{number}").take().acknowledge()
        time.sleep(0.06)
    assert mq.server.call("ZCARD", mq.keys.mq_topics(QUEUE)) <= 4
    assert queue.topics() == ["stays"]
