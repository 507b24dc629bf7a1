"""The scheduler under faults: leaders that die in the middle, that are two, and clocks that are wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from dtq.errors import InvalidTask, RedisUnavailable
from dtq.redisio import Server
from dtq.states import Status
from tests.crash.conftest import Field
from tests.support.engine import Engine
from tests.support.invariants import check_invariants
from tests.support.waiting import wait_until
from tests.support.workers import LocalWorker

YEAR_S = 365 * 86_400


def _redis_time(server: Server) -> float:
    seconds, microseconds = server.call("TIME")
    return int(seconds) + int(microseconds) / 1e6


def _due_together(field: Field, number: int, in_s: float) -> None:
    """Delayed tasks of a queue that nobody serves, all due at one moment."""
    at = datetime.fromtimestamp(_redis_time(field.client.server) + in_s, UTC).isoformat()
    for start in range(0, number, 1000):
        many = min(1000, number - start)
        field.client.submit_many([{"task_type": "quick", "queue": "bulk", "run_at": at}] * many)


# --- leaders ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_leader_that_is_killed_in_the_middle_of_a_backlog_strands_none_of_it(field: Field) -> None:
    """Its lock holds for ten seconds; the others do not wait for that."""
    first = field.spawn("first")
    wait_until(lambda: field.client.queries.leader() == "first", "a leader", 10)
    second = field.spawn("second")
    _due_together(field, 8000, in_s=4)
    bulk = field.client.queries.counts
    give_up_at = time.monotonic() + 15
    while bulk("bulk")[Status.QUEUED] == 0:  # without a pause: it moves thousands in a second
        assert time.monotonic() < give_up_at
    os.kill(first.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    assert bulk("bulk")[Status.PENDING] > 0, "it was killed too late to show anything"
    wait_until(lambda: bulk("bulk")[Status.QUEUED] == 8000, "the end of it", 20)
    assert time.monotonic() - killed_at < 9.5, "before the lock ended"
    assert field.client.queries.queue("bulk").depth == 8000, "none twice"
    assert field.done(field.submit("quick")).worker_id == "second"
    assert second.lines() == []


def test_two_leaders_and_more_enqueue_everything_once(server: Server) -> None:
    """The lock is taken away from whoever has it, again and again, and all believe that they lead."""
    engine = Engine(server, max_scheduled=10_000)
    ran: Counter[str] = Counter()
    workers = [LocalWorker(server.safe_url, f"w{number}", visibility_timeout_s=5) for number in range(3)]
    for worker in workers:
        worker.task("echo")(lambda payload, ctx: ran.update([ctx.task_id]))
    try:
        for worker in workers:
            worker.start()
        ids = engine.submit_many(1500, delay_seconds=1)
        ids += engine.submit_many(500, delay_seconds=2)

        def disturb_and_look() -> bool:
            server.call("DEL", engine.keys.scheduler_lock())
            for worker in workers:
                worker.supervisor.scheduler.lead(True)
            return engine.queries.counts("default")[Status.SUCCEEDED] == len(ids)

        wait_until(disturb_and_look, "the end of all", 30)
    finally:
        for worker in workers:
            worker.stop(now=True)
    assert ran == dict.fromkeys(ids, 1)
    check_invariants(server, engine.keys, engine.settings)


# --- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sched_03_clocks_that_are_wrong_by_minutes_move_no_due_time_no_lease_and_no_expiry(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submitting host is two minutes ahead, one worker two minutes behind, another one two ahead."""
    real_time, real_time_ns = time.time, time.time_ns
    behind = field.spawn("behind", clock_s=-120, visibility_timeout_s=2)
    server, keys = field.client.server, field.keys
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real_time() + 120)
        patch.setattr(time, "time_ns", lambda: real_time_ns() + 120_000_000_000)
        asked_at = _redis_time(server)
        delayed = field.submit("quick", delay_seconds=2, idempotency_key="k", metadata={"ttl_seconds": 60})
        expiring = field.submit("quick", queue="unserved", metadata={"ttl_seconds": 90})
        retried = field.submit("fails.once")
    done = field.done(delayed)
    started = field.runs()[delayed][0].start
    assert 2 <= started - asked_at < 3.5
    assert abs(done.created_at - asked_at) < 1
    assert 2 <= (done.started_at or 0) - asked_at < 3.5
    assert 86_390 < server.call("TTL", keys.idempotency("default", "k")) <= 86_400
    assert field.done(retried).attempt == 2
    assert field.task(expiring).status is Status.QUEUED
    assert 89 < (field.task(expiring).expires_at or 0) - asked_at < 91

    held = field.submit("nap", {"seconds": 60})
    field.running(held)
    field.spawn("ahead", clock_s=120, visibility_timeout_s=2)
    time.sleep(2.5)
    assert field.task(held).attempt == 1, "a lease that is renewed does not end early"
    behind.kill()
    killed_at = time.monotonic()
    wait_until(lambda: field.task(held).worker_id == "ahead", "the reclaim", 15)
    assert 1.0 < time.monotonic() - killed_at < 7
    now = _redis_time(server)
    for worker in field.client.queries.workers():
        assert abs(worker.heartbeat_at - now) < 10
        assert abs(worker.started_at - now) < 60


@pytest.fixture
def paris(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "Europe/Paris")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("paris")
@pytest.mark.parametrize("around", ["2026-03-29T00:59:30+00:00", "2026-10-25T00:59:30+00:00"])
def test_sched_02_a_delay_over_the_change_of_summer_time_is_as_long_as_it_was_asked_for(
    server: Server, monkeypatch: pytest.MonkeyPatch, around: str
) -> None:
    """This process believes that the change is half a minute away; only Redis's clock counts, and it has no zone."""
    change = datetime.fromisoformat(around).timestamp()
    monkeypatch.setattr(time, "time", lambda: change)
    monkeypatch.setattr(time, "time_ns", lambda: int(change * 1e9))
    engine = Engine(server)
    now = _redis_time(server)
    task_id = engine.submit(delay_seconds=7200)
    due = float(server.call("ZSCORE", engine.keys.schedule(), task_id)) / 1000
    assert abs(due - now - 7200) < 1
    task = engine.task(task_id).as_json()
    assert task["available_at"].endswith("Z")
    assert abs(datetime.fromisoformat(task["available_at"]).timestamp() - due) < 0.01
    for text in ("2027-10-31T02:30:00+02:00", "2027-10-31T02:30:00+01:00"):  # the same hour on that wall, twice
        other = engine.submit(run_at=text)
        assert (
            float(server.call("ZSCORE", engine.keys.schedule(), other))
            == datetime.fromisoformat(text).timestamp() * 1e3
        )
    with pytest.raises(InvalidTask, match="run_at"):
        engine.submission(run_at="2027-10-31T02:30:00")


def test_a_delay_of_a_year_is_kept_by_a_leader_and_a_server_that_are_restarted(
    server_factory: Callable[..., Any], make_field: Callable[..., Field]
) -> None:
    process = server_factory("valkey", aof=True)
    field = make_field(process.url)
    first = field.spawn("first")
    now = _redis_time(field.client.server)
    late = [field.submit("quick", delay_seconds=YEAR_S), field.submit("quick", run_at=_iso(now + YEAR_S - 100))]
    with pytest.raises(InvalidTask, match="delay_seconds"):
        field.submit("quick", delay_seconds=YEAR_S + 1)
    soon = field.submit("quick", delay_seconds=1.5)
    first.stop()
    process.restart()
    wait_until(lambda: _knows(field, soon), "the server", 10)
    field.spawn("second")
    assert 1.4 < (field.done(soon).started_at or 0) - now < 8
    server, schedule = field.client.server, field.keys.schedule()
    assert [field.task(one).status for one in late] == [Status.PENDING] * 2
    for one, in_s in zip(late, (YEAR_S, YEAR_S - 100), strict=True):
        assert abs(float(server.call("ZSCORE", schedule, one)) / 1000 - now - in_s) < 2
    server.call("ZADD", schedule, "XX", 1, late[1])  # and a year has gone by
    field.done(field.submit("quick", delay_seconds=0.01))
    assert field.done(late[1]).attempt == 1
    assert field.client.cancel(late[0]).status is Status.CANCELLED
    assert server.call("ZCARD", schedule) == 0


def _knows(field: Field, task_id: str) -> bool:
    with contextlib.suppress(RedisUnavailable):  # its connections are those to the old process
        return field.task(task_id).status is Status.PENDING
    return False


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()


# --- a backlog beside live traffic ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [5_000, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(300)])])
def test_claims_stay_short_while_a_backlog_that_is_due_at_once_is_moved(field: Field, number: int) -> None:
    """The leader moves it in batches; this process claims all the while, and looks at the clock."""
    engine = Engine(field.client.server, max_queue_depth=200_000, max_scheduled=200_000)
    at = datetime.fromtimestamp(_redis_time(engine.server) + 1.5 + number / 5000, UTC).isoformat()
    for _ in range(number // 1000):
        engine.submit_many(1000, queue="bulk", run_at=at)
    field.spawn("leader", worker_concurrency=1, queues="nothing")
    waits: list[float] = []
    counts = field.client.queries.counts
    while (moved := counts("bulk")[Status.QUEUED]) < number:
        engine.submit()
        began = time.perf_counter()
        (claim,) = engine.claim("me", 1)
        if moved:
            waits.append(time.perf_counter() - began)
        engine.commit(claim, worker_id="me")
        time.sleep(0.001)
    waits.sort()
    assert len(waits) > 5, "nothing was measured"
    assert waits[len(waits) // 2] < 0.05
    if number >= 100_000:  # of few, one that waited for a CPU is the 99th percentile
        assert waits[len(waits) * 99 // 100] < 0.05
