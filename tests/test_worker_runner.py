"""Running handlers: what they are given, what becomes of their ends, and the pool's bookkeeping."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from contextvars import ContextVar

import pytest

from dtq.errors import PermanentError, RetryableError, Snooze
from dtq.states import Disposition, Status
from dtq.worker.context import current_context
from tests.support.workers import outcomes, units


@pytest.fixture
def make():
    with units() as made:
        yield made


@pytest.fixture
def unit(make):
    return make(timeout_grace_s=0.2, retry_base_delay=0.1)


def test_a_task_runs_with_its_payload_and_context(unit):
    seen = []

    @unit.task("echo")
    def echo(payload, ctx):
        seen.append((payload, ctx.task_id, ctx.attempt, current_context() is ctx))
        return payload

    task_id = unit.broker.add("echo", {"a": 1})
    unit.run_one()
    assert seen == [({"a": 1}, task_id, 1, True)]
    assert json.loads(unit.broker.outcome(task_id).result) == {"a": 1}
    assert unit.broker.status(task_id) is Status.SUCCEEDED
    assert current_context() is None
    assert len(unit.state.holdings) == 0
    assert unit.pool.outstanding == 0


def test_pay_04_the_payload_reaches_the_handler_as_it_was_sent(unit):
    raw = (
        '{"id":9007199254740993,"big":130775545883395173,"e":[],"o":{},"f":1.0,"u":"\\u0000\\ud83d\\ude00","neg":-0.0}'
    )
    unit.task("echo")(lambda payload, ctx: payload)
    task_id = unit.broker.add("echo", raw=raw.encode())
    unit.run_one()
    assert unit.broker.outcome(task_id).result.decode() == raw.replace("\\ud83d\\ude00", "😀")


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a":"\xff"}', b"[1]", b'"text"', b"null", b"[" * 100_000])
def test_pay_01_a_payload_that_cannot_be_read_is_a_dead_letter_and_the_next_task_runs(unit, raw):
    unit.task("echo")(lambda payload, ctx: None)
    ids = [unit.broker.add("echo", raw=raw), unit.broker.add("echo")]
    unit.run_one()
    assert outcomes(unit.broker, ids) == ["dead", "succeed"]
    assert unit.broker.outcome(ids[0]).reason == "undecodable"


def test_a_handler_may_change_its_payload_without_changing_the_next_attempt(unit):
    seen = []

    @unit.task("greedy")
    def greedy(payload, ctx):
        seen.append(dict(payload))
        payload.clear()
        raise RetryableError("again")

    task_id = unit.broker.add("greedy", {"a": 1})
    unit.run_one()
    unit.broker.run_again(task_id)
    unit.run_one()
    assert seen == [{"a": 1}, {"a": 1}]


def test_an_unknown_type_is_put_off(unit):
    task_id = unit.broker.add("nobody.knows")
    unit.run_one()
    assert unit.broker.outcome(task_id).kind == "unknown"


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, RecursionError, MemoryError])
def test_life_11_whatever_a_handler_raises_is_recorded_and_the_worker_keeps_its_threads(unit, kind, wait_until):
    @unit.task("odd")
    def odd(payload, ctx):
        raise kind

    unit.task("echo")(lambda payload, ctx: None)
    unit.pool.start()
    unit.committer.start()
    ids = [unit.broker.add("odd"), unit.broker.add("odd"), unit.broker.add("echo")]
    for _ in range(2):
        unit.fetcher.step()
    wait_until(lambda: len(unit.state.holdings) == 0, what="all outcomes")
    unit.fetcher.step()
    wait_until(lambda: unit.broker.status(ids[2]) is Status.SUCCEEDED, what="the next task")
    assert unit.broker.outcome(ids[0]).error.error_class == kind.__name__
    assert unit.pool.threads == 2


def test_a_retry_keeps_its_error_and_a_snooze_has_none(unit):
    @unit.task("later")
    def later(payload, ctx):
        raise Snooze(2)

    @unit.task("again")
    def again(payload, ctx):
        raise RetryableError("not now")

    ids = [unit.broker.add("later"), unit.broker.add("again")]
    unit.run_one()
    assert outcomes(unit.broker, ids) == ["snooze", "retry"]
    assert unit.broker.outcome(ids[1]).error.message == "not now"
    assert unit.broker.outcome(ids[1]).max_attempts == 5


def test_a_claim_that_was_lost_before_its_start_is_not_run(unit):
    ran = []
    unit.task("echo")(lambda payload, ctx: ran.append(1))
    unit.broker.add("echo")
    unit.fetcher.step()
    unit.state.holdings.jobs()[0].stop(lost=True)
    unit.pool.step()
    assert ran == []
    assert len(unit.state.holdings) == 0
    assert unit.committer.backlog == 0


def test_a_claim_whose_answer_came_after_its_lease_is_left_to_others(make, wait_until):
    """A tick that went through meanwhile renewed what was held, and not what nobody knew of yet."""
    unit = make(visibility_timeout_s=1.0, heartbeat_interval_s=0.2)
    ran = []
    unit.task("echo")(lambda payload, ctx: ran.append(1))
    unit.broker.add("echo")
    claim = unit.broker.claim

    def late(*asked, **options):
        asked_at = time.monotonic()
        batch = claim(*asked, **options)
        wait_until(lambda: time.monotonic() - asked_at > unit.state.lease_s, what="the end of the lease")
        unit.ticker.step()
        return batch

    unit.broker.claim = late
    unit.run_one()
    assert ran == []
    assert len(unit.state.holdings) == 0
    assert (unit.state.stats.stale, unit.broker.named("commit")) == (1, [])


def test_a_claim_that_was_renewed_is_run_however_old_it_is(unit):
    ran = []
    unit.task("echo")(lambda payload, ctx: ran.append(1))
    unit.broker.add("echo")
    unit.fetcher.step()
    job = unit.state.holdings.jobs()[0]
    job.claimed_at = job.leased_at = job.claimed_at - 2 * unit.state.lease_s
    unit.ticker.step()
    unit.pool.step()
    assert ran == [1]


def test_a_task_that_was_cancelled_before_its_start_is_not_run(unit):
    ran = []
    unit.task("echo")(lambda payload, ctx: ran.append(1))
    task_id = unit.broker.add("echo")
    unit.fetcher.step()
    unit.state.holdings.jobs()[0].stop()
    unit.pool.step()
    unit.commit()
    assert ran == []
    assert unit.broker.outcome(task_id).kind == "cancelled"


def test_a_timeout_is_retryable_and_has_a_disposition_of_its_own(unit):
    @unit.task("slow", timeout_ms=100)
    def slow(payload, ctx):
        while True:
            time.sleep(0.01)

    task_id = unit.broker.add("slow")
    unit.pool.watchdog.start()
    unit.run_one()
    outcome = unit.broker.outcome(task_id)
    assert (outcome.kind, outcome.disposition) == ("retry", Disposition.TIMED_OUT)
    assert outcome.duration_ms >= 100


def test_the_time_limit_is_the_submissions_else_the_handlers_else_the_settings(unit):
    limits = []
    unit.task("default")(lambda payload, ctx: limits.append(round(ctx.remaining_s)))
    unit.task("own", timeout_ms=9_000)(lambda payload, ctx: limits.append(round(ctx.remaining_s)))
    unit.broker.add("default")
    unit.run_one()
    unit.broker.add("own")
    unit.run_one()
    unit.broker.add("own", timeout_ms=3_000)
    unit.run_one()
    assert limits == [30, 9, 3]


@pytest.mark.skipif(
    sys.gettrace() is not None and sys.version_info < (3, 12),
    reason="CPython 3.11 under a tracer stands still while an interrupt waits for a thread in C; run without coverage",
)
def test_life_09_threads_that_hang_are_written_off_and_replaced(unit, wait_until):
    """Four tasks that block in a call of C, two slots: a later task still starts."""
    release = threading.Event()
    unit.task("hang", timeout_ms=200)(lambda payload, ctx: release.wait(60))
    unit.task("echo")(lambda payload, ctx: None)
    for service in (unit.pool, unit.committer, unit.fetcher):
        service.start()
    ids = [unit.broker.add("hang") for _ in range(4)]
    last = unit.broker.add("echo")
    wait_until(lambda: unit.broker.status(last) is Status.SUCCEEDED, what="the task behind them", timeout_s=5)
    wait_until(lambda: outcomes(unit.broker, ids) == ["retry"] * 4, what="the ends of the four")
    assert unit.broker.outcome(ids[0]).disposition is Disposition.TIMED_OUT
    assert unit.pool.abandoned == 4
    assert unit.pool.threads == 2
    commits = len(unit.broker.named("commit"))
    release.set()
    wait_until(lambda: unit.pool.abandoned == 0, what="the written-off threads to end")
    assert len(unit.broker.named("commit")) == commits, "a written-off thread writes nothing"
    assert unit.pool.outstanding == 0


def test_progress_is_written_before_the_outcome_and_the_last_one_arrives(unit):
    @unit.task("steps")
    def steps(payload, ctx):
        for step in range(100):
            ctx.progress(step / 99, str(step))

    unit.broker.add("steps")
    unit.run_one()
    written = [call for call in unit.broker.calls if call[0] in ("progress", "commit")]
    assert [call[0] for call in written] == ["progress", "commit"]
    assert written[0][2:] == (1.0, "99")


def test_a_defect_around_a_handler_ends_the_task_and_not_the_thread(unit, monkeypatch, caplog):
    unit.task("echo")(lambda payload, ctx: 1)
    ids = [unit.broker.add("echo"), unit.broker.add("echo")]
    unit.fetcher.step()
    runner = unit.pool._runners[0]
    monkeypatch.setattr(runner, "_call", lambda *arguments: 1 / 0)
    runner.step(0)
    monkeypatch.undo()
    runner.step(0)
    unit.commit()
    assert outcomes(unit.broker, ids) == ["dead", "succeed"]
    assert "outside of a handler" in caplog.text


def test_a_dead_runner_is_replaced(unit, wait_until):
    unit.pool.start()
    runner = unit.pool._runners[0]
    runner._thread.join(0)
    runner._ended = True
    unit.pool._inbox.put(None)
    wait_until(lambda: unit.pool.threads == 1, what="the end of a thread")
    for one in unit.pool._runners:
        one._ended = False  # as if it had died
    assert unit.pool.revive() == 1
    assert unit.pool.threads == 2


def test_the_job_of_a_dead_runner_is_left_to_others_and_its_slot_is_free_again(unit, wait_until):
    """Whatever ended its thread: a lease that is renewed for nobody would hold the task for ever."""
    unit.task("nap")(lambda payload, ctx: time.sleep(0.3))
    unit.broker.add("nap")
    unit.claim()
    unit.pool.start()
    runner = wait_until(lambda: next((one for one in unit.pool._runners if one.job), None), what="the start")
    job = runner.job
    runner._ended = True
    wait_until(lambda: not runner.alive, what="the end of its thread")
    runner.job, runner.finished, runner._ended = job, 0, False  # as if it had died in the middle
    unit.state.holdings.add(job)
    assert unit.pool.revive() == 1
    assert len(unit.state.holdings) == 0
    assert unit.pool.outstanding == 0


def test_failures_are_logged_with_their_ids(unit, caplog):
    @unit.task("odd")
    def odd(payload, ctx):
        raise ValueError("so odd")

    task_id = unit.broker.add("odd")
    unit.run_one()
    unit.commit()
    record = next(record for record in caplog.records if record.levelno == logging.ERROR)
    assert (record.task_id, record.error) == (task_id, "ValueError: so odd")


@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_what_a_handler_sets_in_context_variables_is_gone_with_it(unit, ending):
    """A logger's bound fields, a tenant: they belong to one task."""
    found, tenant = [], ContextVar("tenant", default="nobody")

    @unit.task("scoped")
    def scoped(payload, ctx):
        found.append(tenant.get())
        tenant.set("somebody")
        if ending == "raises":
            raise PermanentError

    for _ in range(3):
        unit.broker.add("scoped", {})
        unit.run_one()
    assert found == ["nobody"] * 3
