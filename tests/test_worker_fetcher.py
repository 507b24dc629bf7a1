"""Asking for work: how much, in which order, and giving back what does not start."""

from __future__ import annotations

import threading
import time

import pytest

from dtq.broker import ClaimBatch
from dtq.errors import RedisFull, RedisUnavailable
from dtq.redisio import Interrupted
from dtq.states import Status
from dtq.worker.fetcher import HOLD_S, MAX_AHEAD, MAX_CLAIM
from tests.support.workers import units


@pytest.fixture
def make():
    with units(echo=True) as made:
        yield made


@pytest.fixture
def unit(make):
    return make()


def known(unit, seconds, task_type="echo"):
    """Let the worker believe that it has measured a type."""
    unit.state.stats.durations._average[task_type] = seconds


def limits(unit):
    return [call[1] for call in unit.broker.named("claim")]


def test_claim_17_with_one_free_slot_and_nothing_known_one_task_is_claimed(make):
    unit = make(worker_concurrency=1)
    ids = {priority: [unit.broker.add("echo", priority=priority) for _ in range(5)] for priority in range(10)}
    unit.fetcher.step()
    assert limits(unit) == [1]
    assert unit.state.holdings.ids() == [ids[9][0]]


def test_claim_02_no_more_is_claimed_than_there_are_free_slots_beside_long_tasks(make, wait_until):
    unit = make(worker_concurrency=6)
    release = threading.Event()
    unit.task("long")(lambda payload, ctx: release.wait(20))
    unit.pool.start()
    for _ in range(4):
        unit.broker.add("long")
    unit.fetcher.step()
    wait_until(lambda: len(unit.pool.running()) == 4, what="four running tasks")
    for _ in range(10):
        unit.broker.add("long")
    unit.claim()
    assert limits(unit)[-1] == 2
    assert len(unit.state.holdings) == 6
    release.set()


@pytest.mark.parametrize(
    ("seconds", "ahead"),
    [(0.00001, MAX_AHEAD), (0.001, 40), (0.005, 8), (0.02, 2), (0.05, 0), (0.2, 0), (5.0, 0)],
)
def test_about_20_ms_of_work_is_taken_ahead(make, seconds, ahead):
    unit = make(worker_concurrency=2)
    known(unit, seconds)
    unit.broker.add("echo")
    unit.fetcher.step()
    assert unit.fetcher._ahead(time.monotonic()) == ahead


def test_nothing_is_taken_ahead_of_a_type_that_was_never_measured(make):
    unit = make(worker_concurrency=2)
    known(unit, 0.0001)
    unit.broker.add("echo")
    unit.broker.add("new")
    unit.fetcher.step()
    assert unit.fetcher._ahead(time.monotonic()) == 0


def test_nothing_is_taken_ahead_while_a_task_runs_longer_than_it_used_to(unit, wait_until):
    release = threading.Event()
    unit.task("usually.quick")(lambda payload, ctx: release.wait(20))
    known(unit, 0.001, "usually.quick")
    unit.pool.start()
    unit.broker.add("usually.quick")
    unit.fetcher.step()
    wait_until(unit.pool.running, what="the start")
    assert unit.fetcher._ahead(time.monotonic()) > 0
    wait_until(lambda: unit.fetcher._ahead(time.monotonic()) == 0, what="the change of mind")
    release.set()


def test_a_setting_can_fix_how_much_is_taken_ahead(make):
    unit = make(worker_concurrency=2, prefetch=3)
    for _ in range(10):
        unit.broker.add("echo")
    unit.fetcher.step()
    assert limits(unit) == [5]


def test_a_claim_is_no_larger_than_what_redis_does_in_a_moment(make):
    unit = make(worker_concurrency=200)
    for _ in range(100):
        unit.broker.add("echo")
    unit.fetcher.step()
    assert limits(unit) == [MAX_CLAIM]


def test_prio_03_what_is_held_too_long_without_starting_goes_back(make, wait_until):
    """A misjudged type: the tasks behind it are given back, and an urgent one overtakes them all."""
    unit = make(worker_concurrency=1)
    release = threading.Event()
    order = []

    @unit.task("misjudged")
    def misjudged(payload, ctx):
        order.append(ctx.task_id)
        release.wait(20)

    known(unit, 0.001, "misjudged")
    ids = [unit.broker.add("misjudged", priority=0) for _ in range(10)]
    for service in (unit.pool, unit.committer, unit.fetcher):
        service.start()
    wait_until(lambda: order, what="the start")
    wait_until(lambda: len(unit.state.holdings) == 1, what="the hand-back")
    assert len(unit.broker.waiting) == 9
    time.sleep(3 * HOLD_S)
    assert len(unit.state.holdings) == 1, "nothing is taken again while it runs"
    urgent = unit.broker.add("misjudged", priority=9)
    release.set()
    wait_until(lambda: len(order) == 11, what="the end")
    assert order[:2] == [ids[0], urgent]
    assert sorted(order[2:]) == ids[1:]
    assert all(unit.broker.tasks[task_id].claim.attempt == 1 for task_id in ids)


def test_it_asks_again_as_soon_as_a_slot_is_free(make, wait_until):
    unit = make(worker_concurrency=1)
    unit.task("nap")(lambda payload, ctx: time.sleep(0.03))
    known(unit, 5.0, "nap")
    ids = [unit.broker.add("nap") for _ in range(10)]
    for service in (unit.pool, unit.committer, unit.fetcher):
        service.start()
    began = time.monotonic()
    wait_until(lambda: unit.broker.status(ids[-1]) is Status.SUCCEEDED, what="the last")
    assert time.monotonic() - began < 0.6


def test_an_idle_worker_waits_for_the_bell_and_polls_now_and_then(unit):
    unit.fetcher.step()
    assert limits(unit) == [2]
    threading.Timer(0.05, unit.broker.bell.set).start()
    unit.fetcher.step()
    assert 4.9 < unit.doorbell.waits[0] <= 5
    unit.fetcher.step()
    assert limits(unit) == [2, 2]
    unit.fetcher._claimed_at -= 5
    unit.fetcher.step()
    assert limits(unit) == [2, 2, 2]


def test_a_token_that_this_worker_will_not_use_goes_back(unit):
    unit.fetcher.step()
    unit.doorbell.wait = lambda timeout_s: setattr(unit.state, "quiet", True) or True
    for _ in range(3):
        unit.fetcher.step()
    assert unit.broker.wakes == 1
    assert limits(unit) == [2]


def test_a_token_goes_back_that_came_when_what_runs_takes_longer_than_it_used_to(make, wait_until):
    """All slots are busy with a task that is usually quick, so the worker waits for one more; an idle one is there."""
    unit = make(worker_concurrency=1)
    release = threading.Event()
    unit.task("usually.quick")(lambda payload, ctx: release.wait(20))
    known(unit, 0.001, "usually.quick")
    unit.pool.start()
    unit.broker.add("usually.quick")
    unit.fetcher.step()
    wait_until(unit.pool.running, what="the start")

    def rung_late(timeout_s):
        wait_until(lambda: unit.fetcher._ahead(time.monotonic()) == 0, what="the change of mind")
        return True

    passed_on = []

    def wake(queue):
        passed_on.append((queue, len(unit.pool.running())))
        release.set()

    unit.doorbell.wait, unit.broker.wake = rung_late, wake
    for _ in range(4):
        if not passed_on:
            unit.fetcher.step()
    release.set()
    assert passed_on == [("default", 1)]


def test_a_token_may_have_been_taken_by_a_wait_that_the_end_of_the_worker_cut_short(unit):
    unit.fetcher.step()
    unit.doorbell.wait = interrupted
    unit.fetcher.step()
    unit.fetcher.finish()
    assert unit.broker.wakes == 1


def interrupted(timeout_s):
    raise Interrupted


def test_only_a_claim_after_a_wait_rings_for_the_next_worker(unit):
    """Who has not waited has taken no token."""

    def rings():
        return [call[2] for call in unit.broker.named("claim")]

    unit.fetcher.step()
    for _ in range(200):
        unit.broker.add("echo")
    unit.run_one()
    unit.run_one()
    assert rings() == [True, True, False]
    unit.broker.lose_reply = "claim"
    with pytest.raises(RedisUnavailable):
        unit.claim()
    assert rings() == [True, True, False, False]


def test_a_claim_whose_answer_was_lost_has_rung_for_nobody_for_certain(unit):
    unit.broker.add("echo")
    unit.broker.lose_reply = "claim"
    with pytest.raises(RedisUnavailable):
        unit.claim()
    unit.claim()
    assert [call[2] for call in unit.broker.named("claim")] == [True, True]


def test_a_quiet_worker_gives_back_what_it_has_not_started_and_claims_nothing(unit):
    ids = [unit.broker.add("echo") for _ in range(2)]
    unit.fetcher.step()
    unit.state.quiet = True
    unit.fetcher.step()
    assert sorted(unit.broker.waiting) == ids
    unit.fetcher.step()
    assert len(limits(unit)) == 1


def test_life_01_what_has_not_started_goes_back_at_once_when_the_worker_stops(unit):
    ids = [unit.broker.add("echo") for _ in range(2)]
    unit.fetcher.step()
    unit.fetcher.start()
    unit.state.draining = True
    unit.fetcher.stop()
    assert unit.fetcher.join(5)
    assert sorted(unit.broker.waiting) == ids
    assert [unit.broker.tasks[task_id].claim.attempt for task_id in ids] == [0, 0]
    assert unit.pool.outstanding == 0


def test_claim_22_giving_back_at_the_end_is_tried_again_after_a_lost_connection(unit):
    ids = [unit.broker.add("echo") for _ in range(2)]
    unit.fetcher.step()
    unit.broker.lose_reply = "hand_back"
    unit.fetcher.finish()
    assert sorted(unit.broker.waiting) == ids
    assert len(unit.broker.named("hand_back")) == 2


def test_redis_11_after_a_lost_answer_to_a_claim_the_tasks_are_settled_before_the_next(unit):
    ids = [unit.broker.add("echo") for _ in range(2)]
    unit.broker.lose_reply = "claim"
    with pytest.raises(RedisUnavailable):
        unit.fetcher.step()
    assert unit.broker.waiting == []
    unit.broker.away = True
    with pytest.raises(RedisUnavailable):
        unit.fetcher.step()
    unit.broker.away = False
    unit.fetcher.step()
    assert [call[0] for call in unit.broker.calls] == ["claim", "settle", "settle", "claim"]
    assert sorted(unit.state.holdings.ids()) == ids
    assert [unit.broker.tasks[task_id].claim.attempt for task_id in ids] == [1, 1]


def test_redis_11_a_claim_that_had_been_there_before_is_settled(unit):
    unit.broker.add("echo")
    claim = unit.broker.claim
    answers = [ClaimBatch([], False, 0, 0, taken_before=True)]
    unit.broker.claim = lambda *asked, **options: answers.pop() if answers else claim(*asked, **options)
    unit.fetcher.step()
    assert not unit.broker.named("settle")
    unit.fetcher.step()
    assert unit.broker.named("settle")
    unit.broker.claim = claim
    unit.run_one()


def test_a_token_that_was_lost_with_its_answer_is_made_up_for_by_a_claim(unit):
    """Whoever read the token would have claimed."""
    unit.claim()
    assert not unit.fetcher._work_likely
    wait, unit.doorbell.wait = unit.doorbell.wait, lose_the_answer
    with pytest.raises(RedisUnavailable):
        unit.fetcher.step()
    unit.doorbell.wait = wait
    before = len(unit.broker.named("claim"))
    unit.fetcher.step()
    assert len(unit.broker.named("claim")) == before + 1
    assert unit.doorbell.waits == []


def lose_the_answer(timeout_s):
    raise RedisUnavailable("the connection broke", reason="unreachable")


def test_settling_names_all_that_is_held_outcomes_on_their_way_included(unit):
    done = unit.broker.add("echo")
    unit.fetcher.step()
    unit.pool.step()
    unit.broker.lose_reply = "claim"
    unit.broker.add("echo")
    with pytest.raises(RedisUnavailable):
        unit.claim()
    unit.fetcher.step()
    assert unit.broker.named("settle")[0][1] == {done}


def test_redis_08_a_full_redis_stops_claiming_and_loses_nothing(unit):
    unit.broker.add("echo")
    unit.broker.full = True
    with pytest.raises(RedisFull):
        unit.fetcher.step()
    unit.broker.full = False
    unit.run_one()
    assert unit.state.stats.succeeded == 1


def test_a_task_that_comes_back_while_it_still_runs_here_is_not_run_twice(unit, wait_until):
    """The lease was lost and the task claimed again, by the very worker that still runs it."""
    release, starts = threading.Event(), []

    @unit.task("long")
    def long(payload, ctx):
        starts.append(ctx.attempt)
        release.wait(10)

    task_id = unit.broker.add("long")
    for service in (unit.pool, unit.committer):
        service.start()
    unit.fetcher.step()
    wait_until(lambda: starts, what="the start")
    older = unit.state.holdings.get(task_id)
    unit.broker._release([unit.broker.tasks[task_id].claim])
    unit.claim()
    assert older.lost
    assert starts == [1]
    assert unit.broker.waiting == [task_id]
    release.set()
    wait_until(lambda: not unit.pool.running(), what="the end of the first run")
    assert unit.broker.tasks[task_id].outcome is None
    unit.claim()
    wait_until(lambda: unit.broker.status(task_id) is Status.SUCCEEDED, what="the second run")


def test_a_task_whose_claim_was_lost_does_not_start_beside_its_handler_that_has_not_ended(unit, wait_until):
    """The worker stood still, lost the task, struck it out, and is the one that claims it again, as a suspect."""
    release, starts = threading.Event(), []

    @unit.task("long")
    def long(payload, ctx):
        starts.append(ctx.attempt)
        while not release.is_set():
            try:
                release.wait(10)
            except BaseException:  # it does not hear
                continue

    task_id = unit.broker.add("long")
    for service in (unit.pool, unit.committer):
        service.start()
    unit.fetcher.step()
    wait_until(lambda: starts, what="the start")
    unit.ticker._lose([unit.state.holdings.get(task_id)])
    task = unit.broker.tasks[task_id]
    unit.broker._release([task.claim])
    task.claim = task.claim._replace(suspect=1)
    unit.claim()
    assert unit.broker.waiting == [task_id]
    assert len(unit.state.holdings) == 0
    release.set()
    wait_until(lambda: not unit.pool.running(), what="the end of the first run")
    assert starts == [1]
    unit.claim()
    unit.fetcher.step()
    wait_until(lambda: unit.broker.status(task_id) is Status.SUCCEEDED, what="the second run")


def test_a_retry_that_is_claimed_before_its_first_outcome_is_off_the_books_runs(unit):
    task_id = unit.broker.add("echo")
    unit.fetcher.step()
    unit.pool.step()
    unit.broker.commit("w1", [unit.state.holdings.get(task_id).outcome])  # recorded; the answer is on its way
    unit.broker.run_again(task_id)
    unit.claim()
    newer = unit.state.holdings.get(task_id)
    unit.commit()
    assert unit.state.holdings.get(task_id) is newer
    unit.pool.step()
    unit.commit()
    assert len(unit.state.holdings) == 0


def test_too_many_outcomes_that_are_not_recorded_stop_the_intake(make, monkeypatch):
    unit = make()
    monkeypatch.setattr("dtq.worker.fetcher.MAX_BACKLOG", 1)
    unit.fetcher._backlog = lambda: 2
    unit.broker.add("echo")
    unit.fetcher.step()
    assert limits(unit) == []


def test_max_tasks_are_taken_and_no_more(make):
    unit = make(max_tasks=3)
    for _ in range(5):
        unit.broker.add("echo")
    unit.run_one()
    unit.run_one()
    assert unit.state.taken == 3
    assert limits(unit) == [2, 1]
    unit.fetcher._wait_for_room = lambda ahead: None
    unit.fetcher.step()
    assert len(unit.broker.waiting) == 2


def test_a_burst_ends_when_nothing_is_left(make):
    unit = make(burst=True)
    unit.broker.add("echo")
    unit.run_one()
    assert not unit.state.exhausted
    for _ in range(3):
        unit.fetcher.step()
    assert unit.state.exhausted
