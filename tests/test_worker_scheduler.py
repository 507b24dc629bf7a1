"""The leader's work, step by step."""

from __future__ import annotations

import time

import pytest

from dtq.errors import RedisUnavailable
from dtq.upkeep import Promotion, Reconciliation
from dtq.worker.scheduler import LONGEST_SLEEP_S, PROMOTE_BATCH
from tests.support.workers import Unit


@pytest.fixture
def unit():
    made = Unit()
    yield made
    made.stop()


@pytest.fixture
def leader(unit, monkeypatch):
    monkeypatch.setattr("dtq.worker.scheduler.LONGEST_SLEEP_S", 0.5)
    unit.scheduler.lead(True)
    return unit


def names(unit):
    return [call[0] for call in unit.broker.calls]


def test_who_does_not_lead_does_nothing(unit, monkeypatch):
    monkeypatch.setattr("dtq.worker.scheduler.LONGEST_SLEEP_S", 0.01)
    unit.scheduler.step()
    assert names(unit) == []


def test_the_leader_promotes_reclaims_sweeps_and_reconciles(leader):
    leader.broker.promotions = [Promotion(0, 0.01)] * 3
    leader.scheduler.step()
    assert names(leader) == ["promote", "reclaim", "sweep", "check", "sample", "reconcile"]
    leader.scheduler.step()
    assert names(leader)[6:] == ["promote"], "the rest has its own rhythm"
    leader.broker.leader_bell.set()  # the tick saw a lease that has ended
    leader.scheduler.step()
    leader.scheduler.step()
    assert "reclaim" in names(leader)[7:]


def test_redis_15_a_backlog_is_moved_in_batches_without_sleeping(leader):
    leader.broker.promotions = [Promotion(PROMOTE_BATCH, None)] * 20
    began = time.monotonic()
    for _ in range(20):
        leader.scheduler.step()
    assert time.monotonic() - began < 1
    assert len(leader.broker.named("promote")) == 20
    assert leader.leader_bell.waits == []


def test_it_sleeps_until_the_next_due_time(leader):
    leader.scheduler.step()
    leader.broker.promotions = [Promotion(0, 0.05), Promotion(0, 0.0)]
    leader.scheduler.step()
    assert leader.leader_bell.waits[-1] == pytest.approx(0.05, abs=0.02)
    waits = len(leader.leader_bell.waits)
    leader.scheduler.step()
    assert len(leader.leader_bell.waits) == waits, "something is due already"


def test_it_never_sleeps_for_long(leader):
    leader.scheduler.step()
    assert leader.leader_bell.waits[-1] <= LONGEST_SLEEP_S


def test_a_ring_ends_the_sleep(leader):
    leader.scheduler.step()
    leader.broker.leader_bell.set()
    began = time.monotonic()
    leader.scheduler.step()
    assert time.monotonic() - began < 0.5


def test_full_batches_are_followed_by_the_next_at_once(leader, monkeypatch):
    monkeypatch.setattr(leader.broker, "sweep", lambda limit: limit)
    leader.scheduler.step()
    assert leader.leader_bell.waits == []
    assert leader.scheduler._sweep_at <= time.monotonic()


def test_repairs_are_told(leader, monkeypatch, caplog):
    monkeypatch.setattr(leader.broker, "reconcile", lambda limit: Reconciliation(10, 3, True))
    leader.scheduler.step()
    assert "put tasks back in place that their queues had lost: 3" in caplog.text


def test_at_its_end_it_lets_another_worker_lead(leader, wait_until):
    leader.scheduler.start()
    wait_until(lambda: leader.broker.named("promote"), what="the first step")
    leader.scheduler.stop()
    assert leader.scheduler.join(5)
    assert names(leader)[-1] == "resign"


def test_an_end_without_redis_is_an_end(leader):
    leader.broker.away = True
    leader.scheduler.finish()
    with pytest.raises(RedisUnavailable):
        leader.scheduler.step()


def test_who_ceases_to_lead_stops_working(leader, monkeypatch):
    monkeypatch.setattr("dtq.worker.scheduler.LONGEST_SLEEP_S", 0.01)
    leader.scheduler.step()
    before = len(leader.broker.calls)
    leader.scheduler.lead(False)
    leader.scheduler.step()
    assert len(leader.broker.calls) == before
