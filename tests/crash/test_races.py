"""Two that want the same at the same moment, hundreds of times: one wins, and both are told the truth."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dtq.broker import Replay
from dtq.control import Actor
from dtq.errors import DtqError, IdempotencyInProgress, TaskFinished, WrongState
from dtq.model import Claim, Task
from dtq.redisio import Server
from dtq.states import TERMINAL, Status
from tests.support.engine import Engine
from tests.support.invariants import check_invariants

S = Status
ROUNDS = 300
ME = Actor("me")


class Racers:
    """Threads that wait for each other at the start of every round."""

    def __init__(self, number: int) -> None:
        self._barrier = threading.Barrier(number)
        self._dice = random.Random(number)

    def run(self, *calls: Callable[[], Any]) -> list[Any]:
        """Make the calls at once; return what each returned or raised."""
        answers: list[Any] = [None] * len(calls)

        def one(place: int, call: Callable[[], Any], pause_s: float) -> None:
            self._barrier.wait(10)
            time.sleep(pause_s)
            try:
                answers[place] = call()
            except DtqError as error:
                answers[place] = error

        threads = [
            threading.Thread(target=one, args=(place, call, self._dice.choice([0, 0, 0.0002, 0.0005])))
            for place, call in enumerate(calls)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        return answers


@pytest.fixture
def engine(server: Server) -> Iterator[Engine]:
    made = Engine(server, dlq_maxlen=1000)
    made.register("w1")
    made.register("w2")
    yield made
    check_invariants(server, made.keys, made.settings)


def test_idem_02_one_key_makes_one_task_whoever_else_asks_while_it_begins_runs_and_ends(engine: Engine) -> None:
    racers = Racers(4)
    seen: Counter[str] = Counter()
    for number in range(ROUNDS):
        key = f"k{number}"

        def submit(key: str = key) -> Any:
            return engine.try_submit(idempotency_key=key)

        def work() -> Status | None:
            claims = engine.claim("w1", 1)
            return engine.commit(claims[0]) if claims else None

        first, second, third, _ = racers.run(submit, submit, submit, work)
        answers = [first, second, third]
        made = [answer for answer in answers if isinstance(answer, Task)]
        assert len(made) == 1, answers
        for answer in answers:
            seen[type(answer).__name__] += 1
            if isinstance(answer, IdempotencyInProgress):
                assert answer.context["task_id"] == made[0].task_id
            elif isinstance(answer, Replay):
                assert answer.task_id == made[0].task_id
                assert engine.task(answer.task_id).status is S.SUCCEEDED
        for claim in engine.claim("w2", 10):
            engine.commit(claim, worker_id="w2")
    assert engine.totals()["echo:submitted"] == ROUNDS
    assert seen["IdempotencyInProgress"] > 0
    assert seen["Replay"] > 0


@pytest.mark.parametrize("kind", ["succeed", "retry", "dead", "snooze"])
def test_cancel_01_a_cancellation_and_an_outcome_agree_on_one_end(engine: Engine, kind: Any) -> None:
    racers = Racers(2)
    won: Counter[bool] = Counter()
    for _ in range(ROUNDS // 2):
        task_id = engine.submit()
        claim = engine.claim_one()
        asked, recorded = racers.run(
            lambda task_id=task_id: engine.control.cancel(task_id, ME),
            lambda claim=claim: engine.commit(claim, kind, delay_ms=60_000),
        )
        now = engine.task(task_id).status
        cancelled = now is S.CANCELLED
        won[cancelled] += 1
        if asked is S.RUNNING:  # it was asked first, so every outcome leads to its end
            assert (recorded, now) == (S.CANCELLED, S.CANCELLED)
        elif asked is S.CANCELLED:  # the outcome was first, and had left something to cancel
            assert recorded in (S.RETRYING, S.PENDING)
            assert cancelled
        else:
            assert isinstance(asked, TaskFinished)
            assert asked.context["status"] == now == recorded
        assert engine.commit(claim, kind, delay_ms=60_000) in (recorded, now), "and says so again"
        assert engine.task(task_id).status is now, "an end is an end"
    assert won[True] > 0


def test_cancel_01_a_cancellation_and_a_claim_agree_on_whether_it_started(engine: Engine) -> None:
    racers = Racers(2)
    won: Counter[str] = Counter()
    for _ in range(ROUNDS):
        task_id = engine.submit()
        asked, claims = racers.run(
            lambda task_id=task_id: engine.control.cancel(task_id, ME), lambda: engine.claim("w1", 1)
        )
        if claims:
            assert asked is S.RUNNING
            assert engine.commit(claims[0]) is S.CANCELLED
        else:
            assert asked is S.CANCELLED
        won[asked] += 1
        assert engine.task(task_id).status is S.CANCELLED
    assert len(won) == 2


def test_cancel_01_two_cancellations_and_a_hand_back_make_one_end(engine: Engine) -> None:
    racers = Racers(3)
    for _ in range(ROUNDS // 2):
        task_id = engine.submit()
        claim = engine.claim_one()
        first, second, _ = racers.run(
            lambda task_id=task_id: engine.control.cancel(task_id, ME),
            lambda task_id=task_id: engine.control.cancel(task_id, ME),
            lambda claim=claim: engine.broker.hand_back("w1", [claim]),
        )
        assert engine.task(task_id).status is S.CANCELLED
        assert [first, second] != [S.CANCELLED, S.CANCELLED], "one of them at the most ended it by itself"
    assert engine.totals()["echo:cancelled"] == ROUNDS // 2


def test_one_of_many_workers_gets_a_task_and_one_of_many_writes_its_end(engine: Engine) -> None:
    """A claim, its loss, and the claims and outcomes of the former and the next owner, all at once."""
    racers = Racers(3)
    for _ in range(ROUNDS):
        task_id = engine.submit()
        old = engine.claim_one("w1")
        engine.broker.hand_back("w1", [old])

        def second(old: Claim = old) -> Status | None:
            return engine.commit(old, result=b'"old"')

        def third() -> list[Claim]:
            return engine.claim("w2", 1)

        renewed, late, claims = racers.run(
            lambda old=old: engine.broker.tick(engine.worker("w1"), [old]).lost, second, third
        )
        assert renewed == {task_id}
        assert late is None, "its claim was over before"
        assert engine.commit(claims[0], worker_id="w2", result=b'"new"') is S.SUCCEEDED
        assert engine.task(task_id).result == "new"
    assert engine.totals()["echo:succeeded"] == ROUNDS


def test_claim_13_an_outcome_and_a_reclaim_agree_on_who_has_the_task(engine: Engine) -> None:
    """Both come when the lease has just ended."""
    racers = Racers(3)
    won: Counter[bool] = Counter()
    engine.take_back()
    for _ in range(ROUNDS // 2):
        task_id = engine.submit()
        claim = engine.claim_one("w1")
        engine.end_leases("w1", "w2")
        recorded, taken, also_taken = racers.run(
            lambda claim=claim: engine.commit(claim, "retry", delay_ms=0),
            engine.broker.upkeep.reclaim,
            engine.broker.upkeep.reclaim,
        )
        task = engine.task(task_id)
        assert taken + also_taken + (recorded is not None) == 1
        if recorded is None:
            assert (task.status, task.failures, task.attempts[-1].outcome.value) == (S.QUEUED, 0, "lost")
        else:
            assert (task.status, task.failures) == (S.RETRYING, 1)
        won[recorded is None] += 1
        engine.register("w1")
        engine.register("w2")
        engine.promote()
        (again,) = engine.claim("w2", 1)
        assert again.attempt == 2
        assert engine.commit(again, worker_id="w2") is S.SUCCEEDED
    assert len(won) == 2, f"only one of them ever won: {won}"


def test_a_requeue_and_a_discard_and_another_requeue_make_one_change(engine: Engine) -> None:
    racers = Racers(3)
    won: Counter[int] = Counter()
    for _ in range(ROUNDS // 2):
        task_id = engine.fail_for_good()
        answers = racers.run(
            lambda task_id=task_id: engine.control.requeue(task_id, ME),
            lambda task_id=task_id: engine.control.discard(task_id, ME),
            lambda task_id=task_id: engine.control.requeue(task_id, ME),
        )
        winners = [place for place, answer in enumerate(answers) if not isinstance(answer, DtqError)]
        assert len(winners) == 1, answers
        assert all(isinstance(answer, WrongState) for place, answer in enumerate(answers) if place not in winners)
        won[winners[0]] += 1
        task = engine.task(task_id)
        assert task.status is (S.FAILED if winners == [1] else S.QUEUED)
        if task.status is S.QUEUED:
            engine.control.cancel(task_id, ME)
    assert won[1] > 0
    assert won[0] + won[2] > 0


def test_pause_01_nothing_is_claimed_after_a_pause_was_answered(engine: Engine) -> None:
    racers = Racers(3)
    for number in range(ROUNDS // 2):
        queue = f"q{number % 5}"
        engine.submit_many(2, queue=queue)
        claims: list[Claim] = []

        def claim_twice(queue: str = queue, claims: list[Claim] = claims) -> None:
            for _ in range(2):
                claims += engine.claim("w1", 1, [queue])

        _, _, after = racers.run(
            claim_twice,
            lambda queue=queue: engine.claim("w2", 1, [queue]),
            lambda queue=queue: (engine.control.pause(queue, ME), engine.claim("w3", 5, [queue]))[1],
        )
        assert after == []
        assert engine.claim("w1", 5, [queue]) == []
        engine.control.resume(queue, ME)
        for name in ("w1", "w2"):
            engine.broker.settle(name, [queue], [])
        rest = engine.claim("w1", 5, [queue])
        assert len(rest) == 2
        engine.broker.commit("w1", [])
        for claim in rest:
            engine.commit(claim)


def test_back_01_the_last_place_in_a_queue_is_given_once(server: Server) -> None:
    engine = Engine(server, max_queue_depth=3)
    racers = Racers(4)
    for _ in range(ROUNDS // 2):
        taken = engine.submit_many(2)
        answers = racers.run(*[engine.try_submit] * 4)
        accepted = [answer for answer in answers if isinstance(answer, Task)]
        assert len(accepted) == 1
        assert engine.depth() == 3
        for claim in engine.claim("w1", 10):
            engine.commit(claim)
        assert all(engine.task(one).status in TERMINAL for one in taken)
    check_invariants(server, engine.keys, engine.settings)
