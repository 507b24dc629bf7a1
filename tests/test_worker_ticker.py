"""The tick: heartbeat, renewal, what was lost or cancelled, orders from afar."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from dtq.errors import RedisUnavailable, TaskCancelled
from dtq.states import Status
from dtq.worker.ticker import YOUNG_S
from tests.support.workers import units


@pytest.fixture
def make():
    with units(echo=True) as made:
        yield made


@pytest.fixture
def unit(make):
    return make()


def hold(unit, number=1, age_s=1.0, task_type="echo"):
    """Claim tasks and make them `age_s` seconds old."""
    ids = [unit.broker.add(task_type) for _ in range(number)]
    unit.claim()
    for job in unit.state.holdings.jobs():
        job.claimed_at -= age_s
    return ids


def renewed(unit):
    return [sorted(call[2]) for call in unit.broker.named("tick")]


def test_it_registers_first_and_then_ticks(unit):
    unit.task("limited", max_attempts=50, timeout_ms=900)(lambda payload, ctx: None)
    unit.ticker.step()
    assert [call[0] for call in unit.broker.calls] == ["register", "tick"]
    worker = unit.broker.registered["w1"]
    assert (worker.queues, worker.concurrency, worker.lease_s, worker.state) == (("default",), 2, 30.0, "running")
    assert worker.task_types == ("echo", "limited")
    assert unit.broker.policies["echo"] == (5, None, None)
    assert unit.broker.policies["limited"] == (10, 900, None)


def test_it_registers_again_when_its_record_is_gone(unit):
    """REDIS-02: after a FLUSHALL."""
    unit.ticker.step()
    unit.broker.registered.clear()
    unit.ticker.step()
    assert "w1" not in unit.broker.registered
    unit.ticker.step()
    assert "w1" in unit.broker.registered


def test_claim_01_what_has_been_held_for_a_while_is_renewed(unit):
    ids = hold(unit, 2)
    young = unit.broker.add("echo")
    unit.broker.claim("w1", ["default"], 1)
    unit.ticker.step()
    assert renewed(unit) == [sorted(ids)]
    assert young not in renewed(unit)[0]


def test_outcomes_that_are_not_recorded_yet_are_renewed_too(unit):
    ids = hold(unit, 2)
    while unit.pool.step():
        pass
    unit.ticker.step()
    assert renewed(unit) == [sorted(ids)]


@pytest.mark.parametrize("lease_s", [0.5, 1.0, 2.0, 3.0, 30.0])
def test_claim_01_every_age_is_renewed_by_a_third_of_the_lease(make, lease_s):
    """The worst case: a task that is just too young for one tick is renewed by the next."""
    unit = make(visibility_timeout_s=lease_s)
    interval_s = unit.ticker._interval_s
    assert interval_s + min(YOUNG_S, interval_s) <= lease_s / 3 + 1e-9
    assert interval_s <= 1.0


def test_it_keeps_its_rhythm(unit):
    unit.ticker.step()
    assert 0.8 < unit.ticker.pause_s <= 1.0
    unit.ticker._due = time.monotonic() - 10  # it was held up
    unit.ticker.step()
    assert unit.state.stats.renewal_lag_s > 9
    assert unit.ticker.pause_s <= 1.0


def test_claim_24_a_lost_task_is_stopped_and_its_result_dropped(unit, wait_until, caplog):
    ended = []

    @unit.task("long")
    def long(payload, ctx):
        try:
            while True:
                time.sleep(0.005)
        except TaskCancelled:
            ended.append(ctx.cancelled)
            return "a result nobody wants"

    unit.pool.start()
    unit.committer.start()
    (task_id,) = hold(unit, task_type="long")
    wait_until(unit.pool.running, what="the start")
    unit.broker.steal(task_id)
    unit.ticker.step()
    unit.ticker.step()
    wait_until(lambda: ended, what="the interruption")
    wait_until(lambda: not unit.pool.running(), what="the end")
    assert unit.broker.named("commit") == []
    assert len(unit.state.holdings) == 0
    assert unit.state.stats.stale == 1
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


def test_a_task_that_was_recorded_while_the_tick_was_on_its_way_is_not_called_lost(unit, caplog):
    hold(unit, 2)
    unit.pool.step()
    tick = unit.broker.tick

    def late(worker, held, *, lead=True):
        for claim in held:
            unit.broker.steal(claim.task_id)  # as it looks once the outcome is recorded
        done = next(job for job in unit.state.holdings.jobs() if job.outcome is not None)
        unit.state.holdings.remove(next(job for job in unit.state.holdings.jobs() if job is not done))
        return tick(worker, held, lead=lead)

    unit.broker.tick = late
    unit.ticker.step()
    assert unit.state.stats.stale == 0
    assert caplog.records == []


def test_a_cancelled_task_is_told_and_then_interrupted(unit, wait_until):
    seen = []

    @unit.task("polite")
    def polite(payload, ctx):
        while not ctx.cancelled:
            time.sleep(0.005)
        seen.append("asked")
        try:
            time.sleep(0.01)
            while True:
                time.sleep(0.005)
        except TaskCancelled:
            seen.append("told")
            raise

    unit.pool.start()
    unit.committer.start()
    (task_id,) = hold(unit, task_type="polite")
    wait_until(unit.pool.running, what="the start")
    unit.broker.tasks[task_id].cancel = True
    unit.ticker.step()
    unit.ticker.step()
    wait_until(lambda: unit.broker.status(task_id) is Status.CANCELLED, what="the end")
    assert seen == ["asked", "told"]
    assert unit.broker.outcome(task_id).kind == "cancelled"


def test_it_sends_progress_that_still_waits(unit, wait_until):
    release = threading.Event()

    @unit.task("steps")
    def steps(payload, ctx):
        ctx.progress(0.1)
        ctx.progress(0.2)
        release.wait(10)

    unit.pool.start()
    unit.committer.start()
    hold(unit, task_type="steps")
    wait_until(lambda: unit.broker.named("progress"), what="the first report")
    time.sleep(0.3)
    unit.ticker.step()
    wait_until(lambda: len(unit.broker.named("progress")) == 2, what="the last report, while the task runs")
    release.set()


def test_orders_from_afar_are_followed(unit, caplog):
    unit.broker.command = "quiet"
    unit.ticker.step()
    unit.ticker.step()
    assert unit.state.quiet
    assert unit.state.mode == "quiet"
    unit.broker.command = "stop"
    unit.ticker.step()
    assert unit.supervisor.requests.stop
    assert not unit.supervisor.requests.leave


def test_a_stop_that_is_told_every_second_does_not_cut_the_draining_short(unit):
    unit.broker.command = "stop"
    unit.ticker.step()
    unit.state.draining = True
    unit.ticker.step()
    assert not unit.supervisor.requests.leave


def test_the_scheduler_is_told_who_leads(unit):
    unit.broker.leader = True
    unit.ticker.step()
    assert unit.scheduler._leads.is_set()
    unit.broker.leader = False
    unit.ticker.step()
    assert not unit.scheduler._leads.is_set()


def test_a_draining_worker_does_not_lead_again(unit):
    unit.broker.leader = True
    unit.state.draining = True
    unit.ticker.step()
    assert not unit.scheduler._leads.is_set()
    assert unit.broker.named("tick")[0][1].state == "draining"


def test_what_the_leader_left_undone_is_done_by_others(unit):
    unit.broker.overdue = True
    unit.ticker.step()
    assert unit.broker.named("promote") == [("promote", 100, 1000)]
    assert unit.broker.named("reclaim") == [("reclaim", 100, 1000)]
    unit.broker.leader = True
    unit.ticker.step()
    assert len(unit.broker.named("promote")) == 1, "the leader has an actor for that"


def test_without_redis_nothing_is_concluded(unit):
    unit.ticker.step()
    hold(unit)
    unit.broker.away = True
    with pytest.raises(RedisUnavailable):
        unit.ticker.step()
    assert len(unit.state.holdings) == 1
    unit.broker.away = False
    unit.ticker.step()
    assert len(renewed(unit)[-1]) == 1


def test_the_worker_leaves_the_list_when_the_ticker_ends(unit):
    unit.ticker.start()
    unit.ticker.stop()
    unit.ticker.join(5)
    unit.ticker.register()
    unit.ticker.finish()
    assert unit.broker.registered == {}
