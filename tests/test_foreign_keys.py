"""Something else has put a key of its own in the place of a band's stream: nothing but that band stands still."""

from __future__ import annotations

import logging

import pytest

from dtq.redisio import Server
from dtq.states import Status
from tests.support.engine import Engine


@pytest.fixture
def engine(any_server: Server) -> Engine:
    made = Engine(any_server)
    made.register("w1")
    return made


def take_place(engine: Engine, band: int) -> str:
    """Return the key that is a string now."""
    stream = engine.keys.stream("default", band)
    engine.server.call("SET", stream, "mine")
    return stream


def test_other_bands_and_queues_are_claimed(engine: Engine) -> None:
    take_place(engine, 9)
    here, there = engine.submit(priority=1), engine.submit(queue="other")
    assert [claim.task_id for claim in engine.claim(queues=("default", "other"))] == [here, there]
    assert engine.queries.queue("default").counts[Status.RUNNING] == 1
    engine.broker.upkeep.sample()


def test_what_else_is_due_is_promoted_and_what_is_not_waits_for_the_end_of_it(engine: Engine) -> None:
    blocked, free = engine.submit(priority=9, delay_seconds=0.001), engine.submit(priority=1, delay_seconds=0.002)
    stream = take_place(engine, 9)
    while engine.task(free).status is Status.PENDING:
        engine.broker.upkeep.promote()
    assert (engine.task(blocked).status, engine.task(free).status) == (Status.PENDING, Status.QUEUED)
    engine.server.call("DEL", stream)
    assert engine.promote() == 1
    assert {claim.task_id for claim in engine.claim()} == {blocked, free}


def test_ended_leases_of_other_bands_are_taken_back_and_outcomes_recorded(engine: Engine) -> None:
    ids = [engine.submit(priority=band) for band in (9, 1)]
    blocked, lost = engine.claim()
    take_place(engine, 9)
    assert engine.reclaim() == 1
    assert engine.task(lost.task_id).status is Status.QUEUED
    assert engine.broker.tick(engine.worker(), [blocked]).lost == frozenset()
    assert engine.commit(blocked) is Status.SUCCEEDED
    assert [engine.task(one).status for one in ids] == [Status.SUCCEEDED, Status.QUEUED]


def test_it_is_said_once_and_tasks_come_back_when_the_key_is_gone(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [engine.submit(priority=band) for band in (9, 1)]
    stream = engine.keys.stream("default", 9)
    engine.server.call("DEL", stream)
    take_place(engine, 9)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            engine.broker.upkeep.check()
            assert engine.reconcile_all() == 0
    assert [getattr(record, "keys", None) for record in caplog.records] == [stream]
    assert [claim.task_id for claim in engine.claim()] == [ids[1]]
    engine.server.call("DEL", stream)
    assert engine.reconcile_all() == 1
    assert [claim.task_id for claim in engine.claim()] == [ids[0]]
