"""Suspects: started one by one, with a written start, so that only the guilty one is counted."""

from __future__ import annotations

import threading
import time

import pytest

from dtq.errors import RedisUnavailable
from dtq.states import Status
from dtq.worker import suspects
from tests.support.workers import Unit


@pytest.fixture
def unit():
    made = Unit(worker_concurrency=2)
    made.task("echo")(lambda payload, ctx: payload)
    made.release = threading.Event()
    made.task("long")(lambda payload, ctx: made.release.wait(20))
    yield made
    made.release.set()
    made.stop()


def starts(unit):
    return [call[1:] for call in unit.broker.named("start_suspect")]


def step_until(unit, condition, what, timeout_s=5.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        unit.fetcher.step()


def test_a_suspects_start_is_written_before_its_handler_runs(unit):
    order = []
    unit.task("told")(lambda payload, ctx: order.append("run"))
    start = unit.broker.start_suspect
    unit.broker.start_suspect = lambda *arguments: order.append("written") or start(*arguments)
    task_id = unit.broker.add("told", suspect=1)
    unit.pool.start()
    unit.committer.start()
    step_until(unit, lambda: unit.broker.status(task_id) is Status.SUCCEEDED, "the end")
    assert order == ["written", "run"]
    assert starts(unit) == [(task_id, True)]


def test_a_first_time_suspect_is_claimed_alone_and_gets_a_moment_without_company(unit, wait_until):
    task_id = unit.broker.add("long", suspect=1)
    unit.broker.add("echo")
    unit.pool.start()
    unit.committer.start()
    unit.claim()
    began = time.monotonic()
    step_until(unit, lambda: len(unit.broker.named("claim")) > 1, "the next claim")
    assert time.monotonic() - began >= suspects.PROBATION_S
    assert starts(unit) == [(task_id, True), (task_id, False)], "from now on others run beside it"


def test_when_a_suspect_ends_soon_the_next_task_is_claimed_at_once(unit):
    unit.broker.add("echo", suspect=1)
    unit.broker.add("echo")
    unit.pool.start()
    unit.committer.start()
    unit.claim()
    began = time.monotonic()
    step_until(unit, lambda: len(unit.broker.named("claim")) > 1, "the next claim")
    assert time.monotonic() - began < suspects.PROBATION_S
    assert len(starts(unit)) == 1


def test_a_first_time_suspect_that_starts_beside_others_says_so(unit, wait_until):
    unit.broker.add("long")
    unit.pool.start()
    unit.claim()
    wait_until(unit.pool.running, what="the neighbour")
    task_id = unit.broker.add("long", suspect=1)
    unit.claim()
    step_until(unit, lambda: starts(unit), "the start")
    assert starts(unit) == [(task_id, False)]


def test_a_first_time_suspect_without_a_free_slot_goes_back(unit, wait_until, monkeypatch):
    for _ in range(2):
        unit.broker.add("long")
    unit.pool.start()
    unit.claim()
    wait_until(lambda: len(unit.pool.running()) == 2, what="full slots")
    task_id = unit.broker.add("echo", suspect=1)
    monkeypatch.setattr(unit.fetcher, "_limit", lambda ahead: 1)
    unit.claim()
    assert unit.state.holdings.get(task_id) is not None
    step_until(unit, lambda: unit.broker.waiting == [task_id], "the hand-back")
    assert starts(unit) == []
    assert unit.broker.tasks[task_id].claim.attempt == 0


def test_a_second_time_suspect_waits_for_an_empty_worker_and_runs_with_nothing_beside_it(unit, wait_until):
    neighbour = threading.Event()
    unit.task("neighbour")(lambda payload, ctx: neighbour.wait(10))
    unit.broker.add("neighbour")
    unit.pool.start()
    unit.committer.start()
    unit.claim()
    wait_until(unit.pool.running, what="the neighbour")
    task_id = unit.broker.add("long", suspect=2)
    unit.broker.add("echo")
    unit.claim()
    for _ in range(5):
        unit.fetcher.step()
    assert starts(unit) == []
    neighbour.set()
    step_until(unit, lambda: starts(unit), "the start")
    assert starts(unit) == [(task_id, True)]
    claims = len(unit.broker.named("claim"))
    ends_at = time.monotonic() + 2 * suspects.PROBATION_S
    while time.monotonic() < ends_at:
        unit.fetcher.step()
    assert len(unit.broker.named("claim")) == claims
    assert [job.claim.task_id for job in unit.pool.running()] == [task_id]
    unit.release.set()
    step_until(unit, lambda: len(unit.broker.named("claim")) > claims, "the next claim")


def test_a_worker_that_does_not_get_empty_lets_another_one_try(unit, wait_until, monkeypatch):
    monkeypatch.setattr(suspects, "EMPTY_WAIT_S", 0.1)
    unit.broker.add("long")
    unit.pool.start()
    unit.claim()
    wait_until(unit.pool.running, what="the neighbour")
    task_id = unit.broker.add("echo", suspect=2)
    unit.claim()
    step_until(unit, lambda: unit.broker.waiting == [task_id], "the hand-back")
    claims = len(unit.broker.named("claim"))
    unit.fetcher.step()
    assert len(unit.broker.named("claim")) == claims
    assert unit.fetcher._suspects.not_before > time.monotonic()


def test_a_suspect_whose_claim_is_over_is_dropped(unit):
    task_id = unit.broker.add("echo", suspect=1)
    unit.claim()
    unit.broker.steal(task_id)
    unit.fetcher.step()
    assert len(unit.state.holdings) == 0
    assert unit.pool.outstanding == 0
    assert not unit.fetcher._suspects.busy


def test_a_suspect_is_started_when_redis_is_back(unit):
    task_id = unit.broker.add("echo", suspect=1)
    unit.claim()
    unit.broker.away = True
    with pytest.raises(RedisUnavailable):
        unit.fetcher.step()
    unit.broker.away = False
    unit.fetcher.step()
    assert starts(unit)[-1] == (task_id, True)
    assert unit.pool.waiting == 1


def test_a_suspect_that_has_not_started_goes_back_when_the_worker_stops(unit):
    task_id = unit.broker.add("echo", suspect=2)
    unit.claim()
    unit.fetcher.finish()
    assert unit.broker.waiting == [task_id]
    assert len(unit.state.holdings) == 0


def test_a_suspect_that_has_not_started_goes_back_when_the_worker_turns_quiet(unit, wait_until):
    unit.broker.add("long")
    unit.pool.start()
    unit.claim()
    wait_until(unit.pool.running, what="the neighbour")
    task_id = unit.broker.add("echo", suspect=2)
    unit.claim()
    unit.state.quiet = True
    unit.fetcher.step()
    assert unit.broker.waiting == [task_id]
