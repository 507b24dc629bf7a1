"""Recording outcomes: many at once, none lost, none that is not this worker's any more."""

from __future__ import annotations

import pytest

from dtq.errors import RedisUnavailable
from dtq.model import ErrorInfo, Outcome
from dtq.states import Disposition, Status
from dtq.worker.committer import MAX_BATCH
from tests.support.workers import Unit


@pytest.fixture
def unit():
    made = Unit(worker_concurrency=200)
    made.task("echo")(lambda payload, ctx: payload)
    yield made
    made.stop()


def finish(unit, number):
    ids = [unit.broker.add("echo") for _ in range(number)]
    while unit.broker.waiting:
        unit.fetcher.step()
    while unit.pool.step():
        pass
    return ids


def test_outcomes_are_recorded_many_at_once(unit):
    ids = finish(unit, 100)
    unit.commit()
    unit.commit()
    assert [call[1] for call in unit.broker.named("commit")] == [MAX_BATCH, 100 - MAX_BATCH]
    assert all(unit.broker.status(task_id) is Status.SUCCEEDED for task_id in ids)
    assert unit.state.stats.succeeded == 100
    assert len(unit.state.holdings) == 0


def test_one_outcome_waits_for_no_other(unit):
    finish(unit, 1)
    unit.committer.step(timeout_s=60)
    assert unit.broker.named("commit") == [("commit", 1)]


def test_outcomes_are_kept_and_held_while_redis_is_away(unit):
    ids = finish(unit, 3)
    unit.broker.away = True
    for _ in range(3):
        with pytest.raises(RedisUnavailable):
            unit.commit()
    assert unit.committer.backlog == 3
    assert sorted(unit.state.holdings.ids()) == ids
    unit.broker.away = False
    unit.commit()
    assert all(unit.broker.status(task_id) is Status.SUCCEEDED for task_id in ids)
    assert unit.committer.backlog == 0


def test_redis_11_a_lost_answer_is_asked_for_again(unit):
    ids = finish(unit, 2)
    unit.broker.lose_reply = "commit"
    with pytest.raises(RedisUnavailable):
        unit.commit()
    unit.commit()
    assert all(unit.broker.status(task_id) is Status.SUCCEEDED for task_id in ids)
    assert unit.state.stats.stale == 0


def test_claim_24_an_outcome_whose_claim_is_over_is_dropped_and_said_once(unit, caplog):
    ids = finish(unit, 2)
    unit.broker.steal(ids[0])
    unit.commit()
    unit.commit()
    assert unit.broker.status(ids[0]) is Status.RUNNING
    assert unit.broker.status(ids[1]) is Status.SUCCEEDED
    assert unit.state.stats.stale == 1
    assert len([record for record in caplog.records if record.task_id == ids[0]]) == 1
    assert len(unit.state.holdings) == 0


def test_one_outcome_that_cannot_be_recorded_does_not_hold_up_the_others(unit, caplog):
    ids = finish(unit, 3)
    unit.broker.broken_outcomes = {ids[1]}
    unit.commit()
    assert [unit.broker.status(task_id) for task_id in ids] == [Status.SUCCEEDED, Status.RUNNING, Status.SUCCEEDED]
    assert unit.committer.backlog == 0
    assert len(unit.state.holdings) == 0


def test_what_is_left_is_recorded_at_the_end(unit):
    ids = finish(unit, 150)
    unit.committer.start()
    unit.committer.stop()
    assert unit.committer.join(5)
    assert all(unit.broker.status(task_id) is Status.SUCCEEDED for task_id in ids)


def test_an_end_without_redis_does_not_wait_for_ever(unit, caplog):
    finish(unit, 3)
    unit.broker.away = True
    unit.committer.start()
    unit.committer.stop()
    assert unit.committer.join(5)
    assert "could not be recorded" in caplog.text


def test_progress_that_could_not_be_written_is_sent_again_while_the_task_runs(unit):
    seen = []

    @unit.task("steps")
    def steps(payload, ctx):
        ctx.progress(0.5, "half")
        unit.broker.away = True
        with pytest.raises(RedisUnavailable):
            unit.broker.progress("w1", ctx.claim, 0, "")
        unit.committer._collect(0.0)
        seen.append(ctx.pending)
        unit.broker.away = False

    unit.broker.add("steps")
    unit.run_one()
    assert seen == [True]
    assert unit.broker.named("progress")[-1][2:] == (0.5, "half")


def test_the_end_of_a_task_is_told_once_with_the_trace_of_what_nobody_expected(unit, caplog):
    finish(unit, 2)
    good, bad = unit.state.holdings.jobs()
    trace = "  File mine.py\nZeroDivisionError: division by zero\n"
    error = ErrorInfo("ZeroDivisionError", "division by zero", trace)
    bad.outcome = Outcome(claim=bad.claim, kind="dead", reason="permanent", error=error, disposition=Disposition.FAILED)
    unit.commit()
    (record,) = [
        record for record in caplog.records if record.name == "dtq.worker.outcomes" and record.levelname == "ERROR"
    ]
    assert (record.levelname, record.getMessage()) == ("ERROR", "task failed for good: permanent")
    assert record.stack_info == trace
    assert good.outcome.kind == "succeed"
