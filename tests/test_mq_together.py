"""Acknowledgements of many threads at once: how many scripts that takes, and who is told what when one goes wrong."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from dtq.errors import DtqError, RedisFull, RedisUnavailable
from dtq.mq import Message
from dtq.mq.acknowledging import Acknowledgement
from tests.support.mq import Hand, Lab
from tests.support.threads import in_thread
from tests.support.waiting import wait_until

LOST = RedisUnavailable("the answer was lost", reason="unreachable")


class Gate:
    """Stands before the script of acknowledgements: counts what comes, holds it up, and loses answers."""

    def __init__(self, hand: Hand) -> None:
        self.sizes: list[int] = []
        self.open = threading.Event()
        self.answers_to_lose = 0
        self.failure: DtqError = LOST
        self._hand = hand
        self._acknowledge = hand.session.store.acknowledge
        hand.session.store.acknowledge = self._pass  # type: ignore[method-assign]

    @property
    def waiting(self) -> int:
        return len(self._hand.session._acknowledger._waiting)

    def _pass(self, consumer: str, items: Sequence[Any], operation: Any) -> list[bool]:
        self.sizes.append(len(items))
        assert self.open.wait(10)
        answer = self._acknowledge(consumer, items, operation)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise type(self.failure)(self.failure.message, **self.failure.context)
        return answer


def taken(mq: Lab, number: int) -> tuple[Gate, list[Message]]:
    queue = mq.queue()
    queue.put_many([("a", b"")] * number)
    hand = mq.hand(queue, prefetch=number)
    messages = [hand.take() for _ in range(number)]
    return Gate(hand), messages


def acknowledge_at_once(gate: Gate, messages: Sequence[Message]) -> list[Any]:
    """Acknowledge each in a thread of its own, all while the first is being written. Returns what became of them."""
    first, *others = messages
    running = [in_thread(first.acknowledge)]
    wait_until(lambda: gate.sizes, what="the first script")
    running += [in_thread(message.acknowledge) for message in others]
    wait_until(lambda: gate.waiting == len(others), what="the others that wait")
    gate.open.set()
    for thread, _ in running:
        thread.join(10)
    return [outcome for _, (outcome,) in running]


def test_what_comes_while_one_is_written_goes_out_in_one_script(mq: Lab) -> None:
    gate, messages = taken(mq, 5)
    assert acknowledge_at_once(gate, messages) == [True] * 5
    assert gate.sizes == [1, 4]
    assert mq.length("a") == 0
    assert all(message.settled and not message.lost for message in messages)


def test_of_hundreds_a_script_takes_a_hundred(mq_valkey: Lab) -> None:
    gate, messages = taken(mq_valkey, 231)
    assert acknowledge_at_once(gate, messages) == [True] * 231
    assert gate.sizes == [1, 100, 100, 30]


def test_each_is_told_of_its_own_message(mq: Lab) -> None:
    gate, messages = taken(mq, 4)
    mq.server.call("XCLAIM", mq.stream("a"), "workers", "another", 0, messages[2].entry)
    assert acknowledge_at_once(gate, messages) == [True, True, False, True]
    assert [message.lost for message in messages] == [False, False, True, False]
    assert mq.length("a") == 1, "what another owns stays"


@pytest.mark.parametrize("failure", [LOST, RedisFull("no memory is left", reason="maxmemory")])
def test_all_of_a_script_without_an_answer_are_told_so_at_once(mq_valkey: Lab, failure: DtqError) -> None:
    gate, messages = taken(mq_valkey, 4)
    gate.answers_to_lose, gate.failure = 2, failure
    outcomes = acknowledge_at_once(gate, messages)
    assert gate.sizes == [1, 3], "nobody sends again what has just failed for another"
    assert [type(outcome) for outcome in outcomes] == [type(failure)] * 4
    assert {str(outcome) for outcome in outcomes} == {str(failure)}
    assert len({id(outcome) for outcome in outcomes}) == 4, "a traceback belongs to one thread"
    assert outcomes[3].context == failure.context


def test_after_a_lost_answer_each_may_ask_again_and_hears_what_was_done(mq: Lab) -> None:
    gate, messages = taken(mq, 4)
    gate.answers_to_lose = 2
    acknowledge_at_once(gate, messages)
    assert mq.length("a") == 0, "it was done"
    assert [message.acknowledge() for message in reversed(messages)] == [True] * 4
    assert gate.sizes == [1, 3, 3, 1], "one that asks again gets the answer for all of its script"
    assert not any(message.lost for message in messages)
    assert [message.acknowledge() for message in messages] == [False] * 4, "settled already"


def test_a_lost_answer_says_who_else_owned_a_message(mq: Lab) -> None:
    gate, messages = taken(mq, 3)
    gate.answers_to_lose = 2
    mq.server.call("XCLAIM", mq.stream("a"), "workers", "another", 0, messages[1].entry)
    acknowledge_at_once(gate, messages)
    assert [message.acknowledge() for message in messages] == [True, False, True]


def test_one_that_was_taken_by_a_thread_that_was_interrupted_is_written_by_its_own(mq_valkey: Lab) -> None:
    """The timeout of a task ends its thread anywhere, also between taking what waits and writing it."""
    gate, (message,) = taken(mq_valkey, 1)
    gate.open.set()
    session = message._session
    gather = session._acknowledger._gather
    one = Acknowledgement((*message.id, message.key))

    def interrupted(own: Acknowledgement) -> Any:
        session._acknowledger._waiting.clear()
        return gather(own)

    session._acknowledger._gather = interrupted  # type: ignore[method-assign]
    assert session._acknowledger.write(one)
    assert gate.sizes == [1]


def test_a_signal_handler_may_acknowledge_while_its_thread_does(mq_valkey: Lab) -> None:
    gate, (first, second) = taken(mq_valkey, 2)
    gate.open.set()
    acknowledge, answers = first._session.store.acknowledge, []

    def signalled(*args: Any) -> list[bool]:
        first._session.store.acknowledge = acknowledge  # type: ignore[method-assign]
        signal.raise_signal(signal.SIGUSR1)
        return acknowledge(*args)

    before = signal.signal(signal.SIGUSR1, lambda *_: answers.append(second.acknowledge()))
    try:
        first._session.store.acknowledge = signalled  # type: ignore[method-assign]
        answers.append(first.acknowledge())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert answers == [True, True]
    assert mq_valkey.length("a") == 0
