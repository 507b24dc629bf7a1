"""Bulk jobs: many dead letters, or a whole queue, in bounded steps that anybody may take up again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from dtq.audit import AuditFilter
from dtq.bulk import BulkJob, BulkWish, run_job
from dtq.bulk.jobs import LOOKS_A_STEP, MOST_A_STEP
from dtq.deadletters import DeadFilter
from dtq.errors import BulkJobEnded, BulkJobNotFound, InvalidTask, TooManyBulkJobs
from dtq.limits import BULK_OPEN
from dtq.model import Actor, ErrorInfo
from dtq.redisio import Server
from dtq.states import Status
from dtq.taskfilter import TaskFilter
from tests.support import PROJECT
from tests.support.dead import seed_dead
from tests.support.engine import Engine
from tests.support.invariants import check_invariants
from tests.support.servers import ServerProcess

S = Status
ANN = Actor("cli:ann", "cleaning up", "req-1")
DEAD_STATUSES = {"dlq.requeue": S.QUEUED, "dlq.discard": S.FAILED, "dlq.purge": S.FAILED}


def begin(engine: Engine, action: Any = "dlq.requeue", **wish: Any) -> BulkJob:
    if not wish:
        wish["wanted"] = DeadFilter()
    return engine.bulk.begin(BulkWish(action=action, **wish), ANN)


def run(engine: Engine, action: Any = "dlq.requeue", **wish: Any) -> BulkJob:
    return run_job(engine.bulk, begin(engine, action, **wish))


def told(job: BulkJob) -> tuple[str, int, int, int, int]:
    return job.state, job.total, job.done, job.skipped, job.failed


def actions(engine: Engine) -> list[tuple[str, str, int]]:
    return [(one.action, one.target, one.count) for one in engine.queries.audit(AuditFilter()).entries][::-1]


# --- dead letters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", DEAD_STATUSES)
def test_all_of_a_filter_is_done_and_nothing_else(any_server: Server, bounded_keys: None, action: str) -> None:
    engine = Engine(any_server)
    wanted = engine.bury(130, "mail", reason="exhausted", error=ErrorInfo("OSError", "no route"))
    others = engine.bury(40, "mail") + engine.bury(3, "other", reason="exhausted")
    job = run(engine, action, wanted=DeadFilter(queue="mail", error="ROUTE"))
    assert told(job) == ("done", 130, 130, 0, 0)
    for task_id in wanted[::13]:
        task = engine.task(task_id)
        assert (task.status, task.discarded) == (DEAD_STATUSES[action], action != "dlq.requeue")
    assert all(engine.task(task_id).status is S.DEAD_LETTERED for task_id in others)
    assert engine.queries.dead_letters.size() == len(others)
    assert actions(engine) == [(action, job.bulk_id, 130)], "one entry for all of it"
    entry = engine.queries.audit(AuditFilter()).entries[0]
    assert (entry.actor, entry.reason, entry.request_id) == ("cli:ann", "cleaning up", "req-1")
    check_invariants(any_server, engine.keys, engine.settings)


def test_the_server_in_memory_does_bulk_jobs_too(memory_server: Server) -> None:
    engine = Engine(memory_server)
    engine.bury(30)
    assert told(run(engine, "dlq.requeue", wanted=DeadFilter(reason="permanent"))) == ("done", 30, 30, 0, 0)
    assert told(run(engine, "queue.purge", queue="default")) == ("done", 30, 30, 0, 0)
    check_invariants(memory_server, engine.keys, engine.settings)


def test_a_requeue_of_many_keeps_their_order_and_may_go_elsewhere(server: Server) -> None:
    engine = Engine(server)
    buried = engine.bury(60)
    job = run(engine, wanted=DeadFilter(), to_queue="elsewhere", to_priority=9)
    assert told(job) == ("done", 60, 60, 0, 0)
    claims = engine.claim("w1", 100, ["elsewhere"])
    assert [(claim.task_id, claim.priority) for claim in claims] == [(task_id, 9) for task_id in buried]
    assert engine.task(buried[0]).attempts[-1].message == "requeued by cli:ann"


def test_ids_that_are_no_dead_letters_or_come_twice_are_skipped(server: Server) -> None:
    engine = Engine(server)
    buried, waiting = engine.bury(60), engine.submit(queue="w")
    chosen = [*buried[:55], buried[0], waiting, "f" * 32]
    assert told(run(engine, "dlq.discard", task_ids=chosen)) == ("done", 58, 55, 3, 0)
    assert engine.queries.dead_letters.size() == 5
    assert told(run(engine, "dlq.discard", task_ids=chosen)) == ("done", 58, 0, 58, 0), "it is safe to ask again"
    assert [count for _, _, count in actions(engine)] == [55, 0]
    check_invariants(server, engine.keys, engine.settings)


def test_what_cannot_be_changed_is_counted_and_left_alone(server: Server) -> None:
    engine = Engine(server, max_queues=1)
    newer, spoilt, *_ = engine.bury(5)
    server.call("HSET", engine.keys.task(newer), "v", 99)
    server.call("HSET", engine.keys.task(spoilt), "seq", "x")
    assert told(run(engine, wanted=DeadFilter(), to_queue="one-too-many")) == ("done", 5, 0, 0, 5)
    assert told(run(engine)) == ("done", 5, 3, 0, 2)
    assert engine.queries.dead_letters.size() == 2


def test_entries_that_stand_for_nothing_go_with_what_is_discarded(server: Server) -> None:
    engine = Engine(server)
    (task_id,) = engine.bury(1)
    fields = server.call("XRANGE", engine.keys.dead_letter(), "-", "+")[0][1]
    server.call("XADD", engine.keys.dead_letter(), "*", *fields)
    server.call("XADD", engine.keys.dead_letter(), "*", "junk", "x")
    job = begin(engine, "dlq.purge")
    assert told(run_job(engine.bulk, job)) == ("done", 3, 1, 1, 0)
    assert engine.task(task_id).discarded
    assert engine.queries.dead_letters.size() == 1, "what was no letter was not chosen"


def test_a_job_leaves_alone_what_dies_after_it_began(server: Server) -> None:
    engine = Engine(server)
    engine.bury(5)
    job = begin(engine)
    later = engine.bury(4, "later")
    until = begin(engine, wanted=DeadFilter(until=time.time() + 3600))
    assert told(run_job(engine.bulk, job))[2] == 5
    much_later = engine.bury(2, "later")
    assert told(run(engine, wanted=DeadFilter(until=-5e10))) == ("done", 0, 0, 0, 0)
    assert told(run_job(engine.bulk, until))[2] == 4
    assert engine.task(later[0]).status is S.QUEUED
    assert engine.task(much_later[0]).status is S.DEAD_LETTERED


def test_a_wish_that_cannot_be_is_refused_before_anything_is_written(server: Server) -> None:
    engine = Engine(server)
    wishes: list[dict[str, Any]] = [
        {"wanted": DeadFilter(), "to_queue": "Not A Queue"},
        {"wanted": DeadFilter(), "to_priority": 10},
        {"wanted": DeadFilter(), "rate": 0},
        {"wanted": DeadFilter(), "rate": float("nan")},
        {"task_ids": ["x"]},
        {"task_ids": ["f" * 32] * 1001},
        {"action": "queue.purge", "queue": "a:b"},
    ]
    for wish in wishes:
        with pytest.raises(InvalidTask):
            begin(engine, **wish)
    assert server.call("DBSIZE") == 0


# --- purging a queue --------------------------------------------------------------------------------------------------


def test_a_purge_cancels_what_waits_and_does_not_touch_what_runs(any_server: Server, bounded_keys: None) -> None:
    engine = Engine(any_server)
    running = engine.submit(priority=9)
    engine.claim("w1", 1)
    retrying = engine.seed(S.RETRYING, "default").task_id
    waiting = [engine.submit(priority=band, idempotency_key=f"k{band}") for band in range(10)] + engine.submit_many(60)
    pending = engine.submit(delay_seconds=60)
    dead, elsewhere = engine.seed(S.DEAD_LETTERED).task_id, engine.submit(queue="other")
    job = run(engine, "queue.purge", queue="default")
    assert told(job) == ("done", 72, 72, 0, 0)
    for task_id in (retrying, pending, waiting[0], waiting[-1]):
        assert (engine.task(task_id).status, engine.task(task_id).reason) == (S.CANCELLED, "purged")
    assert engine.task(running).status is S.RUNNING
    assert (engine.task(dead).status, engine.task(elsewhere).status) == (S.DEAD_LETTERED, S.QUEUED)
    assert engine.depth() == 1
    assert actions(engine) == [("queue.purge", "default", 72)]
    (purged,) = [event for event in engine.events() if event[0] == "QUEUE_PURGED"]
    assert purged[2] == "default"
    assert '"count":72' in purged[6]
    assert engine.kinds(waiting[0])[-1] == "TASK_CANCELLED"
    again = engine.submission(priority=0, idempotency_key="k0")
    assert engine.offer(again)[0].task_id == waiting[0], "its key is as after any end"  # type: ignore[union-attr]
    check_invariants(any_server, engine.keys, engine.settings)
    assert told(run(engine, "queue.purge", queue="default")) == ("done", 0, 0, 0, 0)


def test_a_purge_ends_although_tasks_keep_coming_and_steps_over_what_it_cannot_change(server: Server) -> None:
    engine = Engine(server)
    ids = engine.submit_many(50)
    server.call("HSET", engine.keys.task(ids[0]), "v", 99)
    server.call("HSET", engine.keys.task(ids[7]), "created", "x")
    job = begin(engine, "queue.purge", queue="default")
    steps = 0
    while engine.bulk.step(job, "r", 5).code == "RUNNING":
        engine.submit_many(10)
        steps += 1
    assert steps < 20
    assert told(engine.bulk.get(job.bulk_id)) == ("done", 50, 48, 0, 2)
    assert engine.queries.counts("default")[S.QUEUED] == 2 + 10 * steps


def test_back_01_after_a_purge_the_queue_takes_as_many_as_before(server: Server) -> None:
    engine = Engine(server, max_queue_depth=30)
    engine.submit_many(30)
    engine.claim("w1", 4)
    assert run(engine, "queue.purge", queue="default").done == 26
    engine.submit_many(26)
    assert getattr(engine.try_submit(), "code", "") == "QUEUE_FULL"


# --- runners ----------------------------------------------------------------------------------------------------------


def test_only_one_runner_works_on_a_job_and_another_goes_on_once_its_lease_has_ended(server: Server) -> None:
    engine = Engine(server)
    engine.bury(30)
    job = begin(engine)
    assert engine.bulk.step(job, "one", 10)[:2] == ("RUNNING", 10)
    assert engine.bulk.step(job, "two", 10)[:2] == ("HELD", 0)
    assert engine.bulk.get(job.bulk_id).held
    assert engine.bulk.waiting() == []
    server.call("HSET", engine.keys.bulk(job.bulk_id), "lease", 1)
    assert [one.bulk_id for one in engine.bulk.waiting()] == [job.bulk_id]
    assert engine.bulk.step(job, "two", 10)[:2] == ("RUNNING", 10)
    assert engine.bulk.step(job, "one", 10)[:2] == ("HELD", 0)
    engine.bulk.release(job, "two")
    assert told(run_job(engine.bulk, job)) == ("done", 30, 30, 0, 0)
    assert engine.bulk.step(job, "one", 10)[:2] == ("DONE", 0)
    assert engine.bulk.waiting() == []


RUNNER = """
import sys
from dtq.client import Client
client = Client(sys.argv[1])
client.run_bulk(client.bulk.get(sys.argv[2]))
"""


def test_a_runner_that_is_killed_in_the_middle_is_followed_by_another(server: Server, wait_until: Any) -> None:
    """The lease is all that is left of it; what it has done is counted, and done once."""
    engine = Engine(server)
    seed_dead(engine, 2_000)
    job = begin(engine, rate=500.0)
    process = subprocess.Popen([sys.executable, "-c", RUNNER, server.safe_url, job.bulk_id], cwd=PROJECT)
    try:
        wait_until(lambda: engine.bulk.get(job.bulk_id).done >= 100, what="the first hundred", timeout_s=30)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    left = engine.bulk.get(job.bulk_id)
    assert left.held
    assert 100 <= left.done < 2_000
    assert told(run_job(engine.bulk, job))[2] == left.done, "the lease has not ended"
    server.call("HSET", engine.keys.bulk(job.bulk_id), "lease", 1, "rate", "")
    ended = run_job(engine.bulk, engine.bulk.get(job.bulk_id))
    assert told(ended) == ("done", 2_000, 2_000, 0, 0)
    assert engine.totals()["echo:requeued"] == 2_000
    assert actions(engine) == [("dlq.requeue", job.bulk_id, 2_000)]


def test_a_rate_is_kept_and_an_abort_is_heard(server: Server, wait_until: Any) -> None:
    engine = Engine(server)
    engine.bury(100)
    job = begin(engine, rate=20.0)
    began, seen = time.monotonic(), []
    thread = threading.Thread(target=run_job, args=(engine.bulk, job), kwargs={"watch": seen.append})
    thread.start()
    wait_until(lambda: engine.bulk.get(job.bulk_id).done >= 20, what="a second's worth")
    assert time.monotonic() - began > 0.7
    aborted = engine.bulk.abort(job.bulk_id, Actor("api:bob"))
    thread.join(10)
    assert not thread.is_alive()
    ended = engine.bulk.get(job.bulk_id)
    assert ended.state == "aborted"
    assert 20 <= ended.done == aborted.done < 100
    assert engine.queries.dead_letters.size() == 100 - ended.done
    assert actions(engine) == [("dlq.requeue", job.bulk_id, ended.done), ("bulk.abort", job.bulk_id, 1)]
    assert [one.done for one in seen] == sorted(one.done for one in seen)
    with pytest.raises(BulkJobEnded):
        engine.bulk.abort(job.bulk_id, ANN)
    with pytest.raises(BulkJobNotFound):
        engine.bulk.abort("f" * 32, ANN)
    check_invariants(server, engine.keys, engine.settings)


def test_a_runner_that_is_stopped_gives_the_job_back_at_once(server: Server) -> None:
    engine = Engine(server)
    engine.bury(50)
    stop = threading.Event()
    job = begin(engine)
    left = run_job(engine.bulk, job, stop=stop, watch=lambda _: stop.set())
    assert (left.state, left.held) == ("running", False)
    assert 0 < left.done < 50
    assert told(run_job(engine.bulk, job, within_s=0.0)) == told(left)
    assert told(run_job(engine.bulk, job)) == ("done", 50, 50, 0, 0)


def test_a_job_whose_record_is_gone_ends_its_runner(server: Server) -> None:
    engine = Engine(server)
    engine.bury(3)
    job = begin(engine)
    server.call("DEL", engine.keys.bulk(job.bulk_id))
    assert run_job(engine.bulk, job).done == 0
    with pytest.raises(BulkJobNotFound):
        engine.bulk.get(job.bulk_id)
    assert engine.bulk.waiting() == engine.bulk.recent() == []


def test_a_bounded_number_of_jobs_is_open_and_those_that_ended_are_listed_newest_first(
    server: Server, bounded_keys: None
) -> None:
    engine = Engine(server)
    jobs = [begin(engine) for _ in range(BULK_OPEN)]
    with pytest.raises(TooManyBulkJobs):
        begin(engine)
    assert [one.bulk_id for one in engine.bulk.recent(5)] == [one.bulk_id for one in jobs[:-6:-1]]
    assert run_job(engine.bulk, jobs[3]).state == "done"
    last = begin(engine)
    assert engine.bulk.recent(1)[0].bulk_id == last.bulk_id
    server.call("HSET", engine.keys.bulk(last.bulk_id), "v", 99)
    server.call("HSET", engine.keys.bulk(jobs[0].bulk_id), "total", "x")
    assert len(engine.bulk.recent()) == BULK_OPEN - 1, "what cannot be read is left out"
    assert 0 < server.call("PTTL", engine.keys.bulk(jobs[5].bulk_id)) <= 7 * 86_400_000


def test_redis_08_at_maxmemory_operators_can_still_stop_and_free(server: Server) -> None:
    engine = Engine(server)
    engine.register("w1")
    engine.submit_many(40)
    running = engine.claim("w1", 1)[0].task_id
    engine.bury(30, "dead")
    engine.submit_many(20, queue="wrong")
    server.call("CONFIG", "SET", "maxmemory", 1)
    assert engine.pause("default")
    assert engine.cancel(running) is S.RUNNING
    assert engine.control.tell_worker("w1", "quiet", ANN)
    assert run(engine, "queue.purge", queue="default").done == 39
    assert run(engine, "dlq.purge").done == 30
    assert run(engine, "task.cancel", tasks=TaskFilter(queue="wrong")).done == 20
    assert engine.resume("default")
    server.call("CONFIG", "SET", "maxmemory", 0)
    check_invariants(server, engine.keys, engine.settings)


# --- many -------------------------------------------------------------------------------------------------------------


def _many(process: ServerProcess, number: int) -> None:
    server, other = Server.connect(process.url), Server.connect(process.url)
    engine = Engine(server, dlq_maxlen=1_000_000)
    seed_dead(engine, number)
    submitting = Engine(other, max_queue_depth=1_000_000)
    waits: list[float] = []
    over = threading.Event()

    def submit() -> None:
        while not over.is_set():
            began = time.perf_counter()
            submitting.submit(queue="live")
            waits.append(time.perf_counter() - began)
            over.wait(0.005)

    thread = threading.Thread(target=submit)
    sizes = []
    try:
        for action, wish in (
            ("dlq.discard", {"wanted": DeadFilter(reason="exhausted")}),
            ("dlq.requeue", {"wanted": DeadFilter()}),
            ("queue.purge", {"queue": "default"}),
        ):
            job = begin(engine, action, **wish)
            assert job.total == number // 2
            if action == "dlq.requeue":
                thread.start()
            step = engine.bulk.step

            def watched(*args: Any) -> Any:
                result = step(*args)  # noqa: B023 - used up in this turn
                sizes.append(result.changed)
                return result

            engine.bulk.step = watched  # type: ignore[method-assign]
            assert told(run_job(engine.bulk, job)) == ("done", number // 2, number // 2, 0, 0)
            engine.bulk.step = step  # type: ignore[method-assign]
    finally:
        over.set()
        thread.join()
    waits.sort()
    print(
        f"{len(waits)} submissions meanwhile, p50 {waits[len(waits) // 2] * 1e3:.1f} ms, "
        f"p99 {waits[len(waits) * 99 // 100] * 1e3:.1f} ms; steps of {sum(sizes) // len(sizes)} on average"
    )
    assert max(sizes) <= MOST_A_STEP <= LOOKS_A_STEP
    assert len(waits) > 50
    assert waits[len(waits) // 2] < 0.05, "half of the time is for others"
    assert engine.queries.counts("live")[S.QUEUED] == len(waits)
    for one in (server, other):
        one.close()


@pytest.mark.slow
def test_redis_15_twenty_thousand_dead_letters_go_in_steps_beside_live_traffic(server_factory: Any) -> None:
    _many(server_factory(), 20_000)


@pytest.mark.long
def test_redis_15_a_hundred_thousand_dead_letters_go_in_steps_beside_live_traffic(server_factory: Any) -> None:
    _many(server_factory(), 100_000)
