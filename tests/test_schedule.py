"""Delays, retries and what is due: who moves it, in what steps, and how it is spread."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from dtq.errors import NewerSchema, TaskFinished, Undecodable
from dtq.model import HandlerPolicy
from dtq.redisio import Server
from dtq.states import Status
from dtq.streams import LeaderBell
from tests.support.dump import dump
from tests.support.engine import FAR_MS, Engine, outcome
from tests.support.invariants import check_invariants

S = Status


def test_sched_01_retries_of_one_outage_come_back_spread_out(server: Server) -> None:
    engine = Engine(server, retry_base_delay=2, retry_max_delay=60)
    engine.submit_many(1000)
    uniform = random.Random(1).random
    claims = []
    while batch := engine.claim():
        claims += batch
    delays = [round(engine.settings.backoff.delay_s(3, uniform) * 1000) for _ in claims]
    outcomes = [outcome(claim, "retry", delay_ms=delay) for claim, delay in zip(claims, delays, strict=True)]
    assert set(engine.broker.commit("w1", outcomes)) == {S.RETRYING}
    flat = server.call("ZRANGE", engine.keys.schedule(), 0, -1, "WITHSCORES")
    due = [float(score) for score in flat[1::2]]
    nominal_ms = 8000
    assert len(due) == 1000
    assert max(due) - min(due) >= 0.35 * nominal_ms, "20 % to both sides"
    buckets = Counter(int(at // 100) for at in due)
    assert max(buckets.values()) <= 50
    assert all(0.8 * nominal_ms <= delay <= 1.2 * nominal_ms for delay in delays)


def test_what_is_due_is_moved_in_the_order_of_its_times_and_nothing_before(any_server: Server) -> None:
    engine = Engine(any_server)
    later = engine.submit(delay_seconds=600)
    second = engine.submit(delay_seconds=0.8)
    first = engine.submit(delay_seconds=0.4)
    promotion = engine.broker.upkeep.promote()
    assert promotion.moved == 0
    assert 0 < (promotion.next_due_s or 0) <= 0.4
    time.sleep(0.85)
    promotion = engine.broker.upkeep.promote()
    assert promotion.moved == 2
    assert 590 < (promotion.next_due_s or 0) <= 600
    assert [claim.task_id for claim in engine.claim()] == [first, second]
    assert engine.task(later).status is S.PENDING
    assert engine.kinds(first)[:2] == ["TASK_QUEUED", "TASK_STARTED"]
    check_invariants(any_server, engine.keys, engine.settings)


def test_a_time_that_has_passed_means_at_once(server: Server) -> None:
    engine = Engine(server)
    assert engine.task(engine.submit(run_at="2001-01-01T00:00:00Z")).status is S.QUEUED
    far = engine.submit(run_at="9999-12-31T23:59:59Z")
    assert engine.task(far).status is S.PENDING
    assert engine.field(far, "available") == "253402300799000", "no digit is lost"
    check_invariants(server, engine.keys, engine.settings)


def test_no_more_is_moved_at_once_than_a_short_script_can(server: Server) -> None:
    engine = Engine(server)
    engine.submit_many(250, delay_seconds=60)
    steps = [engine.broker.upkeep.promote(limit=10_000, late_ms=-FAR_MS) for _ in range(4)]
    assert [step.moved for step in steps] == [100, 100, 50, 0]
    assert steps[-1].next_due_s is None


def test_others_than_the_leader_move_only_what_is_late(server: Server) -> None:
    engine = Engine(server)
    engine.submit(delay_seconds=0.001)
    time.sleep(0.005)
    assert engine.broker.upkeep.promote(late_ms=1000).moved == 0
    assert engine.broker.upkeep.promote(late_ms=2).moved == 1


def test_two_leaders_at_once_enqueue_once(any_server: Server) -> None:
    engine, other = Engine(any_server), Engine(any_server)
    task_id = engine.submit(delay_seconds=60)
    moved = engine.broker.upkeep.promote(late_ms=-FAR_MS).moved + other.broker.upkeep.promote(late_ms=-FAR_MS).moved
    assert moved == 1
    assert engine.depth() == 1
    assert [claim.task_id for claim in engine.claim()] == [task_id]


def test_a_task_that_expires_while_it_waits_for_its_time_is_not_started(any_server: Server) -> None:
    engine = Engine(any_server)
    task_id = engine.submit(delay_seconds=0.005, metadata={"ttl_seconds": 0.001})
    time.sleep(0.01)
    assert engine.broker.upkeep.promote().moved == 0
    assert engine.task(task_id).status is S.EXPIRED
    check_invariants(any_server, engine.keys, engine.settings)


def test_a_schedule_entry_that_stands_for_nothing_is_removed(any_server: Server) -> None:
    engine = Engine(any_server)
    done = engine.seed(S.SUCCEEDED).task_id
    for member in (done, "f" * 32):
        any_server.call("ZADD", engine.keys.schedule(), 1, member)
    assert engine.broker.upkeep.promote() == (0, None)
    assert any_server.call("ZCARD", engine.keys.schedule()) == 0


@pytest.mark.parametrize("field", ["seq", "queue", "priority", "type", "created"])
def test_pay_01_a_scheduled_record_that_cannot_be_read_does_not_stop_the_scheduler(
    any_server: Server, field: str
) -> None:
    engine = Engine(any_server)
    bad = engine.submit(delay_seconds=60)
    good = engine.submit(delay_seconds=61)
    any_server.call("HDEL", engine.keys.task(bad), field)
    assert engine.promote() == 1
    assert [claim.task_id for claim in engine.claim()] == [good]
    assert (engine.task(bad).status, engine.task(bad).reason) == (S.DEAD_LETTERED, "undecodable")
    check_invariants(any_server, engine.keys, engine.settings)


def test_a_scheduled_task_of_a_newer_dtq_is_looked_at_again_later(any_server: Server) -> None:
    engine = Engine(any_server)
    newer = engine.submit(delay_seconds=0.001)
    any_server.call("HSET", engine.keys.task(newer), "v", 2)
    time.sleep(0.003)
    promotion = engine.broker.upkeep.promote()
    assert promotion.moved == 0
    assert 4 < (promotion.next_due_s or 0) <= 5
    assert engine.field(newer, "status") == "pending"


def test_an_earlier_time_than_the_leader_knows_rings_for_it(any_server: Server) -> None:
    engine = Engine(any_server)
    bell = LeaderBell(any_server, engine.keys)
    try:
        engine.submit(delay_seconds=600)
        assert bell.wait(1)
        engine.submit(delay_seconds=700)
        assert not bell.wait(0.01), "that is later than what it waits for"
        engine.submit(delay_seconds=500)
        assert bell.wait(1)
    finally:
        bell.close()


# --- cancel, snooze, unknown types ------------------------------------------------------------------------------------


def test_a_cancelled_delayed_task_stays_cancelled(any_server: Server) -> None:
    engine = Engine(any_server)
    task_id = engine.submit(delay_seconds=60)
    assert engine.cancel(task_id, "not wanted") is S.CANCELLED
    assert engine.promote() == 0
    with pytest.raises(TaskFinished) as error:
        engine.cancel(task_id)
    assert error.value.context == {"task_id": task_id, "status": "cancelled"}
    assert engine.task(task_id).reason == "not wanted"


@pytest.mark.parametrize("kind", ["succeed", "retry", "dead", "snooze", "unknown", "cancelled"])
def test_a_cancel_that_was_recorded_first_wins_over_every_outcome(any_server: Server, kind: str) -> None:
    engine = Engine(any_server)
    task_id = engine.submit()
    claim = engine.claim_one()
    assert engine.cancel(task_id) is S.RUNNING
    assert engine.task(task_id).cancel_requested
    assert engine.broker.tick(engine.worker(), [claim]).cancelled == {task_id}
    assert engine.commit(claim, kind, result=b"1") is S.CANCELLED  # type: ignore[arg-type]
    task = engine.task(task_id)
    assert (task.status, task.result_state, len(task.attempts)) == (S.CANCELLED, "none", 1)
    check_invariants(any_server, engine.keys, engine.settings)


def test_a_snooze_uses_up_no_attempt(any_server: Server) -> None:
    engine = Engine(any_server)
    task_id = engine.submit(max_attempts=1)
    for _ in range(3):
        assert engine.commit(engine.claim_one(), "snooze", delay_ms=1000) is S.PENDING
        engine.promote()
    claim = engine.claim_one()
    assert (claim.attempt, engine.task(task_id).failures) == (1, 0)


def test_an_unknown_type_is_put_off_until_its_grace_is_over(any_server: Server) -> None:
    engine = Engine(any_server, unknown_type_grace_s=60)
    task_id = engine.submit(task_type="from-the-future")
    assert engine.commit(engine.claim_one(), "unknown") is S.PENDING
    assert engine.field(task_id, "attempt") == "0"
    engine.promote()
    claim = engine.claim_one()
    assert claim.unknown_since is not None
    assert abs(claim.unknown_since - time.time()) < 60
    impatient = Engine(any_server, unknown_type_grace_s=0)
    assert impatient.commit(claim, "unknown") is S.DEAD_LETTERED
    assert engine.task(task_id).reason == "unknown_task_type"


def test_an_unknown_type_is_not_given_up_while_a_worker_of_its_queue_knows_it(any_server: Server) -> None:
    """In a rolling deploy a task may meet the old workers again and again before it meets the first new one."""
    engine = Engine(any_server, unknown_type_grace_s=0)
    task_id = engine.submit(task_type="new.type")
    engine.register("old", handlers={"old.type": HandlerPolicy(5, 1000, None)}, queues=("default", "other"))
    engine.register("elsewhere", handlers={"new.type": HandlerPolicy(5, 1000, None)}, queues=("default-too", "other"))
    engine.register("new", handlers={"new.type": HandlerPolicy(5, 1000, None)}, queues=("other", "default"))
    for _ in range(3):
        claim = engine.claim_one("old")
        assert engine.commit(claim, "unknown", worker_id="old") is S.PENDING
        engine.promote()
    assert (engine.task(task_id).failures, claim.attempt) == (0, 1)
    engine.broker.deregister("new")
    assert engine.commit(engine.claim_one("old"), "unknown", worker_id="old") is S.DEAD_LETTERED
    check_invariants(any_server, engine.keys, engine.settings)


def test_the_grace_of_an_unknown_type_begins_anew_once_a_worker_knew_it(server: Server) -> None:
    engine = Engine(server)
    task_id = engine.submit()
    engine.commit(engine.claim_one(), "unknown")
    engine.promote()
    assert engine.commit(engine.claim_one(), "retry", delay_ms=1000) is S.RETRYING
    assert engine.field(task_id, "unknown") is None
    engine.promote()
    assert engine.claim_one().unknown_since is None


def test_records_of_a_newer_dtq_and_spoilt_ones_are_not_touched_by_operators(any_server: Server) -> None:
    engine = Engine(any_server)
    newer = engine.submit()
    dead = engine.fail_for_good(queue="other")
    spoilt, spoilt_dead = engine.submit(queue="third"), engine.fail_for_good(queue="fourth")
    any_server.call("HSET", engine.keys.task(newer), "v", 2)
    any_server.call("HSET", engine.keys.task(dead), "v", 2)
    any_server.call("HDEL", engine.keys.task(spoilt), "type")
    any_server.call("HSET", engine.keys.task(spoilt_dead), "seq", "many")
    before = dump(any_server)
    with pytest.raises(NewerSchema):
        engine.cancel(newer)
    with pytest.raises(NewerSchema):
        engine.requeue(dead, "somebody")
    with pytest.raises(Undecodable):
        engine.cancel(spoilt)
    with pytest.raises(Undecodable):
        engine.requeue(spoilt_dead, "somebody")
    assert dump(any_server) == before


def test_one_claim_that_is_committed_twice_in_one_call_has_one_outcome(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.submit_many(2)
    one, other = engine.claim()
    outcomes = [outcome(one), outcome(other, "dead"), outcome(one, "retry", delay_ms=1), outcome(other)]
    assert engine.broker.commit("w1", outcomes) == [S.SUCCEEDED, S.DEAD_LETTERED, S.SUCCEEDED, S.DEAD_LETTERED]
    check_invariants(any_server, engine.keys, engine.settings)


def test_hundreds_of_outcomes_are_recorded_by_a_call(server: Server) -> None:
    engine = Engine(server)
    engine.submit_many(250)
    claims = [claim for _ in range(3) for claim in engine.claim()]
    statuses = engine.broker.commit("w1", [outcome(claim, max_attempts=9) for claim in claims])
    assert statuses == [S.SUCCEEDED] * 250
    assert engine.task(claims[0].task_id).max_attempts == 9
    assert engine.broker.commit("w1", []) == []
