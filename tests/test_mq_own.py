"""Owning: what is lost, late, released, dead, or changed by others; on each kind of server, and on a Cluster."""

from __future__ import annotations

import time

import pytest

from dtq.errors import MessageLost, TopicFull
from dtq.keys import GROUP
from dtq.mq import Message
from tests.support.mq import Hand, Lab, receive_all, refuses
from tests.support.waiting import wait_until

SHORT_S = 0.6


def lose(mq: Lab, message: Message, hand: Hand) -> Message:
    """Let the visibility timeout of what was not renewed pass; another consumer takes it."""
    found: list[Message] = []

    def taken() -> bool:
        hand.claim()
        found[:] = [one for one in [hand.session.receive(0)] if one is not None]
        return bool(found)

    wait_until(taken, what="the claim to expire")
    assert found[0].key == message.key
    return found[0]


def test_mq_12_what_is_held_is_renewed_and_delivered_to_nobody_else(mq_valkey: Lab) -> None:
    queue = mq_valkey.queue(visibility_timeout_s=0.6)
    queue.put("a", b"")
    with queue.subscribe(["a"]) as first:
        mine = first.receive(5)
        with queue.subscribe(["a"]) as second, pytest.raises(TimeoutError):
            second.receive(1.8)
        assert not mine.lost
        assert mine.acknowledge()


def test_mq_18_a_late_acknowledgement_leaves_the_newer_message_of_the_key_alone(mq: Lab) -> None:
    queue = mq.queue(visibility_timeout_s=SHORT_S)
    queue.put("a", b"old", key="k")
    late = mq.hand(queue).take()
    assert lose(mq, late, mq.hand(queue)).acknowledge()
    assert queue.put("a", b"new", key="k")
    assert late.acknowledge() is False
    assert late.lost
    assert not queue.put("b", b"", key="k"), "it still refuses duplicates"
    assert mq.hand(queue).take().data == b"new"


def test_mq_19_20_what_was_lost_or_acknowledged_cannot_be_released(mq: Lab) -> None:
    queue = mq.queue(visibility_timeout_s=SHORT_S)
    queue.put("a", b"", key="k")
    lost = mq.hand(queue).take()
    other = lose(mq, lost, mq.hand(queue))
    for _ in range(2):
        with pytest.raises(MessageLost):
            lost.release("b")
        assert lost.lost
        other.acknowledge()
    assert mq.length("a") == mq.length("b") == 0
    with pytest.raises(MessageLost):
        other.release()
    assert queue.stats().topics["a"].counts["lost"] == 1


def test_mq_21_what_another_took_over_is_marked_and_not_taken_back(mq: Lab) -> None:
    queue = mq.queue(visibility_timeout_s=SHORT_S)
    queue.put_many([("a", b""), ("a", b"")])
    slow, other = mq.hand(queue, prefetch=2), mq.hand(queue, prefetch=2)
    handed_out = slow.take()
    first, second = lose(mq, handed_out, other), other.take()
    slow.renewer.renew()
    assert handed_out.lost
    assert slow.session.holdings.empty, "what was only ready has left the buffer"
    assert slow.session.receive(0) is None
    assert first.acknowledge()
    assert second.acknowledge()
    assert first.deliveries == second.deliveries == 2


def test_what_expires_under_its_own_consumer_is_not_handed_out_twice(mq: Lab) -> None:
    """The renewer was too late; the claim has renewed it."""
    queue = mq.queue(visibility_timeout_s=SHORT_S)
    queue.put("a", b"")
    hand = mq.hand(queue, prefetch=5)
    message = hand.take()
    time.sleep(SHORT_S * 1.5)
    assert hand.none()
    assert message.acknowledge()


def test_mq_22_a_release_into_a_full_topic_keeps_the_message(mq_valkey: Lab) -> None:
    queue = mq_valkey.queue(visibility_timeout_s=0.3)
    queue.put("b", b"")
    queue.put("a", b"", key="k")
    with queue.subscribe(["a"]) as subscription:
        message = subscription.receive(5)
        waited_s = refuses(lambda: message.release("b", max_size=1, timeout_s=0.7), TopicFull)
        assert 0.6 < waited_s < 5
        refuses(lambda: message.release("b", max_size=1, timeout_s=0), TopicFull)
        assert not message.lost, "it was renewed meanwhile"
        assert message.acknowledge()
    assert queue.stats().topics["b"].counts["full"] == 2


def test_a_release_that_waits_goes_on_when_there_is_room(mq: Lab) -> None:
    queue = mq.queue()
    queue.put("b", b"1")
    queue.put("a", b"2", key="k")
    blocker = mq.hand(queue, "b").take()
    with queue.subscribe(["a"]) as subscription:
        message = subscription.receive(5)
        blocker.release("c")
        message.release("b", max_size=1, timeout_s=5)
    assert mq.hand(queue, "b").take().key == "k"


def test_mq_23_a_release_into_its_own_topic_never_counts_as_full(mq: Lab) -> None:
    queue = mq.queue()
    queue.put("a", b"", max_size=1, key="k")
    with queue.subscribe(["a"]) as subscription:
        subscription.receive(5).release(max_size=1, timeout_s=0)
        again = subscription.receive(5)
        again.release("a", max_size=1, timeout_s=0)
        third = subscription.receive(5)
        assert (third.key, third.deliveries) == ("k", 3)
        assert not queue.put("a", b"", key="k", block=False), "the key is taken all the time"


def test_mq_24_a_release_with_a_delay_hides_the_message_for_so_long(mq: Lab) -> None:
    queue = mq.queue()
    queue.put("a", b"", key="k")
    with queue.subscribe(["a"]) as subscription:
        first = subscription.receive(5)
        released = time.time()
        first.release(delay_s=0.4)
        with pytest.raises(TimeoutError):
            subscription.receive(0.2)
        again = subscription.receive(5)
        assert 0.38 < time.time() - released < 2
        assert (again.key, again.deliveries, again.first_put_at) == ("k", 2, first.first_put_at)


def test_prim_02_a_release_keeps_what_the_message_is_and_is_counted_apart_from_a_crash(mq: Lab) -> None:
    queue = mq.queue(visibility_timeout_s=SHORT_S)
    queue.put("a", b"data", key="k")
    message = mq.hand(queue).take()
    message.release("retry")
    moved = mq.hand(queue, "retry").take()
    assert (moved.key, moved.data, moved.first_put_at) == ("k", b"data", message.first_put_at)
    lose(mq, moved, mq.hand(queue, "retry"))
    topics = queue.stats().topics
    assert topics["a"].counts == {"stored": 1, "released": 1}
    assert topics["retry"].counts == {"redelivered": 2, "lost": 1}


@pytest.mark.parametrize("fields", [("key", "k"), ("data", "d"), ("key", "k", "data", "d", "first", "x", "n", "0")])
def test_mq_25_an_entry_that_is_not_ours_is_dead_and_stops_nobody(mq: Lab, fields: tuple[str, ...]) -> None:
    queue = mq.queue()
    mq.server.call("XADD", mq.stream("a"), "*", *fields)
    queue.put("a", b"next")
    with queue.subscribe(["a"]) as subscription:
        assert subscription.receive(5).data == b"next"
        (dead,) = queue.dead.list()
        assert dead.reason is not None
        assert dead.reason.startswith("corrupt: ")
        assert dead.origin == "a"
        assert dead.key == ("k" if "key" in fields else dead.key)
    assert queue.stats().topics["a"].counts["corrupt"] == 1


def test_an_entry_under_the_key_of_another_message_does_not_take_that_key(mq: Lab) -> None:
    queue = mq.queue()
    queue.put("a", b"real", key="k")
    forged = mq.server.call("XADD", mq.stream("b"), "*", "key", "k")
    hand = mq.hand(queue, "a", "b", prefetch=5)
    real = hand.take()
    assert [dead.key for dead in queue.dead.list()] == [f"corrupt:b:{forged.decode()}"]
    assert real.acknowledge()
    assert queue.put("a", b"", key="k")


def test_an_entry_that_was_deleted_while_it_was_in_flight_is_counted_and_stops_nobody(mq: Lab) -> None:
    """Redis 6.2 keeps it pending and answers nil, 7 drops it when it is claimed."""
    queue = mq.queue(visibility_timeout_s=SHORT_S)
    queue.put("a", b"", key="k")
    queue.put("a", b"next")
    gone = mq.hand(queue).take()
    mq.server.call("XDEL", mq.stream("a"), gone.entry)
    time.sleep(SHORT_S * 1.2)
    assert mq.hand(queue).take().data == b"next"
    assert mq.pending("a") == 1
    assert not gone.acknowledge() or mq.server.kind == "memory"
    assert queue.put("a", b"", key="k"), "its key stands for nothing"


def test_mq_26_a_group_that_is_destroyed_costs_nothing(mq: Lab) -> None:
    queue = mq.queue()
    queue.put_many([("a", b"%d" % number) for number in range(4)])
    with queue.subscribe(["a"]) as subscription:
        seen = {subscription.receive(5).data}
        mq.server.call("XGROUP", "DESTROY", mq.stream("a"), GROUP)
        queue.put("a", b"4")
        while len(seen) < 5:
            with subscription.receive(5) as message:
                seen.add(message.data)
    assert mq.hand(queue).take().data == b"0", "what was in flight is delivered again"


def test_mq_30_what_fails_too_often_is_dead_and_may_come_back(mq: Lab) -> None:
    queue = mq.queue(max_deliveries=3)
    queue.put("a", b"poison", key="k")
    deliveries = []
    with queue.subscribe(["a"]) as subscription:
        for _ in range(3):
            message = subscription.receive(5)
            deliveries.append(message.deliveries)
            with pytest.raises(ZeroDivisionError), message:
                raise ZeroDivisionError
        with pytest.raises(TimeoutError):
            subscription.receive(0.3)
    assert deliveries == [1, 2, 3]
    (dead,) = queue.dead.list()
    assert (dead.key, dead.data, dead.reason, dead.origin, dead.deliveries) == (
        "k",
        b"poison",
        "max_deliveries",
        "a",
        3,
    )
    assert not queue.put("a", b"", key="k"), "it is kept"
    assert not queue.dead.requeue("other")
    assert queue.dead.requeue("k")
    assert not queue.dead.requeue("k"), "it is there no more"
    again = mq.hand(queue).take()
    assert (again.key, again.deliveries, again.first_put_at) == ("k", 1, dead.first_put_at)
    again.acknowledge()
    assert queue.stats().topics["a"].counts["dead"] == 1


def test_the_dead_may_be_moved_elsewhere_purged_and_even_subscribed_to(mq: Lab) -> None:
    queue = mq.queue(max_deliveries=1, dead_topic="graves")
    queue.put_many([("a", b"", f"k{number}") for number in range(3)])
    for _ in range(3):
        mq.hand(queue).take().release()
    hand = mq.hand(queue)
    assert hand.none()
    assert len(queue.dead.list()) == 3
    assert [dead.key for dead in queue.dead.list(1)] == ["k0"]
    assert queue.dead.requeue("k0", "b")
    assert mq.hand(queue, "b").take().key == "k0"
    held = mq.hand(queue, "graves").take()
    assert (held.key, held.deliveries) == ("k1", 2)
    assert not queue.dead.requeue("k1"), "somebody holds it"
    assert queue.dead.purge() == 1
    assert queue.put("a", b"", key="k2")
    held.release()
    with queue.subscribe(["graves"]) as subscription:
        assert receive_all(subscription, 1)[0].key == "k1"
