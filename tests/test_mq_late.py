"""What comes late: answers after the end of a claim, commands that were held up, replies that were lost."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from dtq.errors import MessageLost, RedisFull, RedisUnavailable
from dtq.keys import GROUP
from dtq.mq import Message, MessageQueue, Subscription
from dtq.mq.store import Claimed
from tests.conftest import ProxyFactory
from tests.support.mq import Child, Hand, Lab, receive_all
from tests.support.threads import in_thread
from tests.support.waiting import wait_until

SHORT_S = 0.6


def outlive(seconds: float = SHORT_S) -> None:
    """Let all claims end that are not renewed."""
    time.sleep(seconds * 1.2)


def take_over(hand: Hand) -> Message:
    """Return a message whose claim has ended; a server that has only just come is given time."""

    def claimed() -> Message | None:
        hand.claim()
        return hand.session.receive(0)

    message: Message = wait_until(claimed, what="the message")
    return message


# --- messages whose claim has ended -----------------------------------------------------------------------------------


def test_what_a_claim_took_is_handed_to_nobody_when_its_answer_comes_after_the_end_of_the_claim(mq: Lab) -> None:
    """By then another has taken it over and is done with it, and a renewal that began before knew nothing of it."""
    queue = mq.queue(visibility_timeout_s=SHORT_S)
    queue.put_many([("a", b"", "done by another"), ("a", b"", "still mine")])
    late, other = mq.hand(queue, prefetch=2), mq.hand(mq.queue(visibility_timeout_s=SHORT_S))
    claim = late.session.store.claim

    def answered_late(*args: Any, **options: Any) -> Any:
        reply = claim(*args, **options)
        late.renewer.renew()
        outlive()
        assert take_over(other).acknowledge()
        return reply

    late.session.store.claim = answered_late  # type: ignore[method-assign]
    late.claim()
    assert late.session.receive(0) is None, "nobody knows yet whose they are"
    late.renewer.step()
    message = late.session.receive(0)
    assert message is not None
    assert message.key == "still mine"
    assert message.acknowledge()
    assert late.session.receive(0) is None
    assert mq.length("a") == 0


def test_what_lay_ready_while_the_process_stood_still_is_renewed_before_it_is_handed_out(mq: Lab) -> None:
    queue = mq.queue(visibility_timeout_s=SHORT_S)
    queue.put_many([("a", b"", "one"), ("a", b"", "two")])
    stopped, other = mq.hand(queue, prefetch=2), mq.hand(queue)
    stopped.claim()
    outlive()
    assert take_over(other).key == "one"
    receiving, outcome = in_thread(stopped.session.receive, 10)
    wait_until(lambda: stopped.session.holdings.doubtful, what="the refusal")
    stopped.renewer.step()
    receiving.join(10)
    assert [message.key for message in outcome] == ["two"]
    assert stopped.session.receive(0) is None


def test_a_claim_makes_what_was_refused_available_again(mq: Lab) -> None:
    """It takes over what has expired, also from its own consumer."""
    queue = mq.queue(visibility_timeout_s=SHORT_S)
    queue.put("a", b"")
    hand = mq.hand(queue, prefetch=2)
    hand.claim()
    outlive()
    assert hand.session.receive(0) is None
    hand.claim()
    hand.renewer.step()
    message = hand.session.receive(0)
    assert message is not None
    assert message.acknowledge()


STAND_STILL = """
with queue.subscribe(["a"], prefetch=3) as subscription:
    while queue.stats().topics["a"].in_flight < 3:
        time.sleep(0.01)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(4):
        try:
            with subscription.receive(1) as message:
                print(message.key, flush=True)
        except TimeoutError:
            print("nothing", flush=True)
"""


def test_mq_21_a_stopped_process_hands_out_nothing_that_another_has_done_in_the_meantime(mq_valkey: Lab) -> None:
    queue = mq_valkey.queue(visibility_timeout_s=1)
    queue.put_many([("a", b"", key) for key in ("one", "two", "three")])
    child = Child(mq_valkey.url, 1, STAND_STILL)
    try:
        assert child.line() == "ready"
        child.signal(signal.SIGSTOP)
        with queue.subscribe(["a"]) as subscription:
            assert [message.key for message in receive_all(subscription, 3)] == ["one", "two", "three"]
            queue.put("a", b"", key="four")
            assert subscription.receive(5).key == "four"
        child.say("go on")
        child.signal(signal.SIGCONT)
        lines = [child.line() for _ in range(4)]
        assert lines[0] in ("four", "nothing")
        assert sorted(lines) == ["four", "nothing", "nothing", "nothing"]
    finally:
        child.close()


def test_a_slow_redis_makes_nobody_work_on_what_another_has_done(mq_valkey: Lab, flaky_proxy: ProxyFactory) -> None:
    proxy = flaky_proxy(mq_valkey.url)
    behind = Lab(proxy.url)
    slow, quick = behind.queue(visibility_timeout_s=0.5), mq_valkey.queue(visibility_timeout_s=0.5)
    with slow.subscribe(["a"]) as first:
        with pytest.raises(TimeoutError):
            first.receive(0.1)
        proxy.delay_s = 0.9
        quick.put("a", b"", key="k")
        wait_until(lambda: mq_valkey.pending("a") == 1, what="the claim whose answer takes long")
        with quick.subscribe(["a"]) as second:
            assert receive_all(second, 1)[0].key == "k"
        with pytest.raises(TimeoutError):
            first.receive(2.5)
        proxy.delay_s = 0.0
    behind.client.close()


def test_when_the_clock_of_redis_leaps_nothing_counts_as_expired_until_its_owners_had_time_to_renew(
    mq_valkey: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """Set right by hand, or a machine that slept: all claims look ended, and none is."""
    lab, leap_s, visibility_s = mq_valkey, 100.0, 3.0
    queue = lab.queue(visibility_timeout_s=visibility_s)
    queue.put_many([("a", b"", "renewed"), ("a", b"", "its owner is gone")])
    owner, gone = lab.hand(queue), lab.hand(queue)
    assert owner.take().key == "renewed"
    gone.take()
    other = lab.hand(lab.queue(visibility_timeout_s=visibility_s))
    quiet = other.reader._quiet
    other.claim()
    assert quiet.latest < time.time() + 10
    quiet._since = time.monotonic() - 1000  # a server that has been there for long
    quiet._ahead_s -= leap_s  # type: ignore[operator]  # as if its clock had shown so much less
    for entry, name, idle, count in lab.pending_rows("a"):
        aged = ("IDLE", idle + int(leap_s) * 1000, "RETRYCOUNT", count, "JUSTID")
        lab.server.call("XCLAIM", lab.stream("a"), GROUP, name, 0, entry, *aged)
    leapt = time.monotonic()
    assert other.none(), "this very look is too late to ask what time it is"
    assert [record.getMessage() for record in caplog.records] == [
        "the clock of Redis leapt by 100 s: ended leases are not believed for now"
    ]
    assert other.none()
    owner.renewer.renew()
    assert take_over(other).key == "its owner is gone"
    assert time.monotonic() - leapt > visibility_s / 3 * 0.9
    assert other.none()


@pytest.mark.slow
def test_nothing_is_handed_out_after_another_has_acknowledged_it_however_late_redis_answers(
    mq_valkey: Lab, flaky_proxy: ProxyFactory
) -> None:
    """Three consumers with a short timeout, whose answers are held up for about as long again and again."""
    proxies = [flaky_proxy(mq_valkey.url) for _ in range(3)]
    labs = [Lab(proxy.url) for proxy in proxies]
    done: dict[str, float] = {}
    handed_out: list[tuple[str, float]] = []
    dice, number = random.Random(7), 300

    def work(subscription: Subscription) -> None:
        for message in subscription:
            handed_out.append((message.key, time.monotonic()))
            with contextlib.suppress(RedisUnavailable):
                if message.acknowledge():
                    done.setdefault(message.key, time.monotonic())

    with contextlib.ExitStack() as stack:
        queues = [lab.queue(visibility_timeout_s=0.5) for lab in labs]
        subscriptions = [stack.enter_context(queue.subscribe(["a"], prefetch=5)) for queue in queues]
        workers = [in_thread(work, subscription) for subscription in subscriptions for _ in range(2)]
        direct = mq_valkey.queue(visibility_timeout_s=0.5)
        for key in range(number):
            direct.put("a", b"", key=str(key), max_size=40)
            if key % 5 == 0:
                dice.choice(proxies).delay_s = dice.choice((0.0, 0.0, 0.2, 0.6))
        for proxy in proxies:
            proxy.delay_s = 0.0
        wait_until(lambda: mq_valkey.length("a") == 0, what="the end of all messages", timeout_s=20)
        for subscription in subscriptions:
            subscription.close()
        for thread, _ in workers:
            thread.join(10)
    assert {key for key, _ in handed_out} == set(map(str, range(number)))
    noise_s = 0.1  # between being handed a message and noting when that was
    assert [(key, at - done[key]) for key, at in handed_out if at > done.get(key, at) + noise_s] == []
    for lab in labs:
        lab.client.close()


# --- commands that were held up ---------------------------------------------------------------------------------------


def held_up(hand: Hand) -> Callable[[], Any]:
    """Return a claim as it was sent, to arrive again or late."""
    store, sent = hand.session.store, []
    run = store._run

    def record(name: str, /, **args: Any) -> Any:
        sent.append((name, {**args, "items": list(args.get("items", ()))}))
        return run(name, **args)

    store._run = record  # type: ignore[method-assign]
    hand.claim()
    store._run = run  # type: ignore[method-assign]
    name, args = next(one for one in sent if one[0] == "mq_claim")
    return lambda: run(name, **args)


def test_a_claim_that_arrives_after_it_was_settled_takes_nothing(mq: Lab) -> None:
    """It timed out, what it might have taken was given back, and nobody waits for its answer."""
    queue = mq.queue()
    hand = mq.hand(queue, prefetch=5)
    arrive = held_up(hand)
    hand.session.settle()
    queue.put("a", b"")
    arrive()
    assert mq.pending("a") == 0
    assert hand.take().deliveries == 1, "its next claims take as ever"


def test_a_claim_that_arrives_after_its_subscription_has_left_takes_nothing_and_leaves_no_name(mq: Lab) -> None:
    queue = mq.queue(visibility_timeout_s=300)
    queue.put("a", b"", key="k")
    hand = mq.hand(queue, prefetch=5)
    arrive = held_up(hand)
    hand.leave()
    arrive()
    assert mq.consumer_names("a") == []
    assert mq.hand(queue).take().key == "k"


def test_what_a_claim_took_that_failed_half_way_is_given_back(mq: Lab) -> None:
    queue = mq.queue(visibility_timeout_s=300)
    queue.put("a", b"")
    hand = mq.hand(queue)
    claim = hand.session.store.claim

    def failing(*args: Any, **options: Any) -> Any:
        claim(*args, **options)
        raise RedisFull("a script keeps what it wrote before it failed")

    hand.session.store.claim = failing  # type: ignore[method-assign]
    with pytest.raises(RedisFull):
        hand.claim()
    hand.session.store.claim = claim  # type: ignore[method-assign]
    assert hand.take().deliveries == 1


# --- answers that were lost -------------------------------------------------------------------------------------------


def lose_answer(store: Any, name: str) -> None:
    """Let the next call of a script be done, and its answer come too late."""
    run = store._run

    def once(script: str, /, **args: Any) -> Any:
        reply = run(script, **{**args, "items": list(args["items"])} if "items" in args else args)
        if script == name:
            store._run = run
            raise RedisUnavailable("it did not answer in time", reason="timeout")
        return reply

    store._run = once


def taken(mq: Lab, queue: MessageQueue) -> Message:
    queue.put("a", b"", key="k")
    return mq.hand(queue).take()


def test_an_acknowledgement_whose_answer_was_lost_says_true_when_it_is_asked_again(mq: Lab) -> None:
    message = taken(mq, mq.queue())
    lose_answer(message._session.store, "mq_acknowledge")
    with pytest.raises(RedisUnavailable):
        message.acknowledge()
    assert mq.length("a") == 0
    assert message.acknowledge(), "it was this consumer that did it"
    assert not message.lost


def test_a_release_whose_answer_was_lost_cannot_go_elsewhere_any_more(mq: Lab) -> None:
    message = taken(mq, mq.queue())
    lose_answer(message._session.store, "mq_release")
    with pytest.raises(RedisUnavailable):
        message.release("b")
    with pytest.raises(MessageLost):
        message.release("c")
    assert message.lost
    assert (mq.length("b"), mq.length("c")) == (1, 0), "another target is another release"


def test_a_release_that_is_asked_for_again_moves_the_message_once(mq: Lab) -> None:
    message = taken(mq, mq.queue())
    lose_answer(message._session.store, "mq_release")
    with pytest.raises(RedisUnavailable):
        message.release("b")
    message.release("b")
    assert message.settled
    assert not message.lost
    assert mq.length("b") == 1


def test_what_was_acknowledged_later_is_not_said_to_be_lost_when_the_answer_was(mq: Lab) -> None:
    queue = mq.queue()
    queue.put_many([("a", b"")] * 3)
    hand = mq.hand(queue, prefetch=3)
    messages = [hand.take() for _ in range(3)]
    for message in messages[:2]:
        hand.session.acknowledge_later(message)
    lose_answer(hand.session.store, "mq_acknowledge")
    with pytest.raises(RedisUnavailable):
        hand.session.flush()
    hand.session.acknowledge_later(messages[2])
    hand.session.flush()
    assert not any(message.lost for message in messages)
    assert mq.length("a") == 0
    assert queue.stats().topics["a"].counts["acknowledged"] == 3


# --- two threads at once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["acknowledge", "release"])
def test_what_is_settled_while_it_is_renewed_is_not_said_to_be_lost(mq: Lab, how: str) -> None:
    message = taken(mq, mq.queue())
    session = message._session
    renew = session.store.renew

    def settled_first(*args: Any) -> list[bool]:
        getattr(message, how)()
        return renew(*args)

    session.store.renew = settled_first  # type: ignore[method-assign]
    session.renew()
    assert message.settled
    assert not message.lost


def test_of_two_threads_that_acknowledge_one_message_one_does_it(mq: Lab) -> None:
    message = taken(mq, mq.queue())
    session = message._session
    acknowledge = session.store.acknowledge
    answers: list[bool] = []

    def overtaken(*args: Any) -> list[bool]:
        session.store.acknowledge = acknowledge  # type: ignore[method-assign]
        answers.append(message.acknowledge())
        return acknowledge(*args)

    session.store.acknowledge = overtaken  # type: ignore[method-assign]
    answers.append(message.acknowledge())
    assert answers == [True, False]
    assert not message.lost


def make_message(hand: Hand) -> Message:
    """One that the hand does not own."""
    return Message(hand.session, Claimed("a", "1-0", "gone", b"", 0.0, 1))


def test_whoever_finishes_messages_without_end_does_not_keep_a_subscription_from_renewing(mq: Lab) -> None:
    queue = mq.queue()
    queue.put_many([("a", b"")] * 130)
    hand = mq.hand(queue, prefetch=130)
    messages = [hand.take() for _ in range(130)]
    acknowledge, scripts = hand.session.store.acknowledge, []

    def more_meanwhile(*args: Any) -> list[bool]:
        scripts.append(len(args[1]))
        assert len(scripts) < 10, "it goes on for ever"
        hand.session.holdings.finish_later(make_message(hand))
        return acknowledge(*args)

    for message in messages:
        hand.session.acknowledge_later(message)
    hand.session.store.acknowledge = more_meanwhile  # type: ignore[method-assign]
    hand.renewer.step()
    assert scripts == [100], "then it looks whether it is time to renew"
    hand.session.flush()
    assert scripts == [100, 31], "what was done when it was asked for"
    assert mq.length("a") == 0


# --- coming and leaving -----------------------------------------------------------------------------------------------


def test_a_subscription_that_cannot_have_its_second_thread_leaves_again(
    mq: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = mq.queue(visibility_timeout_s=300)
    queue.put("a", b"", key="k")
    monkeypatch.setattr("dtq.mq.renewer.Renewer.start", lambda renewer: (_ for _ in ()).throw(RuntimeError("no room")))
    with pytest.raises(RuntimeError, match="no room"), queue.subscribe(["a"]):
        pass
    monkeypatch.undo()
    assert queue.consumers() == []
    assert mq.consumer_names("a") == []
    with queue.subscribe(["a"]) as subscription:
        assert receive_all(subscription, 1, timeout_s=5)[0].key == "k"


def test_leaving_a_redis_that_does_not_answer_takes_a_bounded_time(
    mq_valkey: Lab, flaky_proxy: ProxyFactory, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = flaky_proxy(mq_valkey.url)
    lab = Lab(proxy.url)
    queue = lab.queue()
    queue.put_many([("a", b"")] * 2)
    with queue.subscribe(["a"]) as subscription:
        message = subscription.receive(5)
        subscription.acknowledge_later(subscription.receive(5))
        proxy.hang()
        left = time.monotonic()
    assert time.monotonic() - left < 15
    assert message.lost
    assert "could not hand back" in caplog.text
    proxy.unhang()
    lab.client.close()


# --- a full server ----------------------------------------------------------------------------------------------------


def test_at_maxmemory_what_waits_is_still_taken_and_acknowledged(mq: Lab) -> None:
    """Else nothing would ever make room again."""
    if mq.server.kind == "memory":
        pytest.skip("it has no bound")
    queue = mq.queue(visibility_timeout_s=1)
    queue.put_many([("a", b"%d" % number) for number in range(30)])
    with queue.subscribe(["a"]) as subscription:
        receive_all(subscription, 1)
        mq.server.call("CONFIG", "SET", "maxmemory", 1)
        try:
            for _ in range(28):
                time.sleep(0.05)  # so that the subscription looks after its queue meanwhile
                receive_all(subscription, 1, timeout_s=2)
            subscription.receive(2).release()
        finally:
            mq.server.call("CONFIG", "SET", "maxmemory", 0)
        assert subscription.receive(5).acknowledge()
