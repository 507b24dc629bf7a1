"""A worker and the engine together, on a real server: order, pause, cancel, limits, errors."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from dtq.client import Client
from dtq.errors import PermanentError, RetryableError, Snooze, TaskFinished
from dtq.settings import load_settings
from dtq.states import Disposition, Status
from tests.support.workers import LocalWorker

FAST = {"retry_base_delay": 0.05, "retry_max_delay": 0.2}


@pytest.fixture
def client(server):
    with Client(settings=load_settings(env_file=None, redis_url=server.safe_url)) as made:
        yield made


@pytest.fixture
def make(server):
    made = []

    def worker(worker_id="local", **settings):
        made.append(LocalWorker(server.safe_url, worker_id, **{**FAST, **settings}))
        return made[-1]

    yield worker
    for one in made:
        one.stop(now=True)


def run(client, task_type, payload=None, timeout_s=10, **options):
    return client.wait(client.submit(task_type, payload, **options).task_id, timeout_s)


def runs(worker, task_id):
    """Whether the handler has begun; a claimed task that has not may still go back."""
    return any(job.claim.task_id == task_id for job in worker.supervisor.pool.running())


# --- order ------------------------------------------------------------------------------------------------------------


def test_prio_03_bands_start_from_9_down_to_0_first_in_first_out(make, client):
    order = []
    worker = make(worker_concurrency=1)
    worker.task("ordered")(lambda payload, ctx: order.append((ctx.priority, payload["n"])))
    for n in range(20):
        for band in range(10):
            client.submit("ordered", {"n": n}, priority=band)
    last = client.submit("ordered", {"n": 20}, priority=0).task_id
    worker.start()
    assert client.wait(last, 15).status is Status.SUCCEEDED
    assert order == [*((band, n) for band in range(9, -1, -1) for n in range(20)), (0, 20)]


def test_prio_03_an_urgent_task_is_the_very_next(make, client, wait_until):
    order, release = [], threading.Event()
    worker = make(worker_concurrency=1)

    @worker.task("first")
    def first(payload, ctx):
        release.wait(10)

    worker.task("then")(lambda payload, ctx: order.append(ctx.priority))
    running = client.submit("first").task_id
    ids = [client.submit("then", priority=0).task_id for _ in range(100)]
    worker.start()
    wait_until(lambda: runs(worker, running), what="the first start")
    client.submit("then", priority=9)
    release.set()
    for one in ids:
        client.wait(one, 10)
    assert order == [9, *[0] * 100]


def test_prio_01_a_low_band_starves_under_a_steady_flow_of_high_ones_and_that_is_seen(make, client):
    """The order is strict, as the contract says: what helps is to see it."""
    started = []
    worker = make(worker_concurrency=2)
    worker.task("told")(lambda payload, ctx: (started.append(ctx.priority), time.sleep(0.005)))
    worker.start()
    low = client.submit("told", priority=0, delay_seconds=0.2).task_id
    ends_at = time.monotonic() + 2
    ages = []
    while time.monotonic() < ends_at:
        info = client.queries.queue("default")
        if info.waiting_by_priority[9] < 50:
            client.submit_many([{"task_type": "told", "priority": 9}] * 100)
        if client.get(low).status is Status.QUEUED:
            ages.append(info.oldest_waiting_by_priority_s[0] or 0.0)
    assert 0 not in started, "p0 got a turn while p9 waited"
    assert ages[-1] > 1.5
    assert ages == sorted(ages)
    assert client.wait(low, 10).status is Status.SUCCEEDED
    assert client.queries.queue("default").oldest_waiting_by_priority_s[0] is None


def test_queues_are_served_in_the_order_that_they_were_given(make, client):
    order = []
    worker = make(worker_concurrency=1, queues=("urgent", "default"))
    worker.task("told")(lambda payload, ctx: order.append(ctx.queue))
    for _ in range(3):
        client.submit("told", queue="default", priority=9)
        client.submit("told", queue="urgent", priority=0)
    worker.start()
    assert run(client, "told").status is Status.SUCCEEDED
    assert order == ["urgent"] * 3 + ["default"] * 4


# --- pause and quiet --------------------------------------------------------------------------------------------------


def test_pause_01_nothing_starts_after_a_pause_and_all_after_the_resume(make, client):
    worker = make()
    worker.task("echo")(lambda payload, ctx: None)
    worker.start()
    assert run(client, "echo").status is Status.SUCCEEDED
    client.pause("default")
    ids = [client.submit("echo").task_id for _ in range(10)]
    time.sleep(1.5)
    assert {client.get(one).status for one in ids} == {Status.QUEUED}
    client.resume("default")
    resumed_at = time.monotonic()
    for one in ids:
        assert client.wait(one, 2).status is Status.SUCCEEDED
    assert time.monotonic() - resumed_at < 2


def test_pause_02_what_becomes_due_in_a_paused_queue_waits(make, client, wait_until):
    worker = make()

    @worker.task("fails.once")
    def fails_once(payload, ctx):
        if ctx.attempt == 1:
            raise RetryableError("once")

    worker.task("echo")(lambda payload, ctx: None)
    worker.start()
    retried = client.submit("fails.once").task_id
    wait_until(lambda: client.get(retried).failures == 1, what="the failure")
    client.pause("default")
    delayed = client.submit("echo", delay_seconds=0.2).task_id
    time.sleep(1.5)
    assert client.get(delayed).status is Status.QUEUED
    assert client.get(retried).status in (Status.QUEUED, Status.SUCCEEDED)
    client.resume("default")
    assert client.wait(delayed, 3).status is Status.SUCCEEDED
    assert client.wait(retried, 3).status is Status.SUCCEEDED


def test_pause_02_what_runs_when_a_queue_is_paused_ends(make, client, wait_until):
    worker = make()
    worker.task("nap")(lambda payload, ctx: time.sleep(0.5))
    worker.start()
    task_id = client.submit("nap").task_id
    wait_until(lambda: runs(worker, task_id), what="the start")
    client.pause("default")
    assert client.wait(task_id, 3).status is Status.SUCCEEDED


# --- errors, retries, limits ------------------------------------------------------------------------------------------


def test_retry_01_a_task_is_tried_as_often_as_it_may_and_then_buried(make, client):
    starts = []
    worker = make()

    @worker.task("fails")
    def fails(payload, ctx):
        starts.append(ctx.attempt)
        raise RetryableError(f"attempt {ctx.attempt}")

    worker.start()
    task = run(client, "fails", max_attempts=3)
    assert starts == [1, 2, 3]
    assert (task.status, task.reason, task.failures) == (Status.DEAD_LETTERED, "exhausted", 3)
    assert [(one.number, one.message, one.error_class) for one in task.attempts] == [
        (n, f"attempt {n}", "RetryableError") for n in (1, 2, 3)
    ]
    assert [one.worker_id for one in task.attempts] == ["local"] * 3
    assert all(one.traceback for one in task.attempts)
    assert task.attempts[0].retry_delay_ms > 0


def test_retry_01_permanent_and_unlisted_errors_are_buried_at_once(make, client):
    worker = make()

    @worker.task("permanent")
    def permanent(payload, ctx):
        raise PermanentError("never")

    @worker.task("odd")
    def odd(payload, ctx):
        raise ValueError("odd")

    @worker.task("not.json")
    def not_json(payload, ctx):
        return object()

    worker.start()
    for name in ("permanent", "odd", "not.json"):
        task = run(client, name)
        assert (task.status, task.reason, task.attempt) == (Status.DEAD_LETTERED, "permanent", 1)


def test_life_11_every_kind_of_exception_is_recorded_and_all_threads_stay(make, client):
    worker = make(worker_concurrency=2)

    class Silent(Exception):
        def __str__(self):
            raise RuntimeError

    kinds = {
        kind.__name__: kind
        for kind in (SystemExit, KeyboardInterrupt, GeneratorExit, RecursionError, MemoryError, Silent)
    }

    @worker.task("raises")
    def raises(payload, ctx):
        raise kinds[payload["kind"]]

    worker.task("echo")(lambda payload, ctx: payload)
    worker.start()
    for name in kinds:
        task = run(client, "raises", {"kind": name})
        assert task.status is Status.DEAD_LETTERED
        assert task.error["class"].endswith(name)
    assert run(client, "echo", {"a": 1}).result == {"a": 1}
    assert worker.supervisor.pool.threads == 2


def test_dlq_02_a_huge_error_takes_little_room(make, client, server):
    worker = make()

    @worker.task("loud")
    def loud(payload, ctx):
        raise RetryableError("é" * 2_000_000)

    worker.start()
    task = run(client, "loud", max_attempts=3)
    stored = server.call("LRANGE", client.broker.keys.attempts(task.task_id), 0, -1)
    assert len(stored) == 3
    assert max(len(entry) for entry in stored) <= 8192
    assert task.error["message"].endswith("(truncated)")


def test_pay_04_the_payload_survives_delay_failure_and_requeue(make, client):
    payload = {
        "id": 9007199254740993, "big": 130775545883395173, "e": [], "o": {}, "f": 1.0, "u": "\u0000😀", "neg": -0.0,
    }  # fmt: skip
    seen = []
    worker = make()

    @worker.task("picky")
    def picky(payload, ctx):
        seen.append(json.dumps(payload))
        if len(seen) == 1:
            raise RetryableError("once")
        if len(seen) == 2:
            raise PermanentError("buried")

    worker.start()
    task = run(client, "picky", payload, delay_seconds=0.1)
    assert task.status is Status.DEAD_LETTERED
    client.requeue(task.task_id)
    assert client.wait(task.task_id, 5).status is Status.SUCCEEDED
    assert seen == [json.dumps(payload)] * 3


def test_a_snooze_uses_no_attempt(make, client):
    starts = []
    worker = make()

    @worker.task("snoozes")
    def snoozes(payload, ctx):
        starts.append(ctx.attempt)
        if len(starts) < 3:
            raise Snooze(0.05)

    worker.start()
    task = run(client, "snoozes", max_attempts=1)
    assert (task.status, task.attempt, task.failures) == (Status.SUCCEEDED, 1, 0)
    assert starts == [1, 1, 1]


def test_an_unknown_type_waits_for_a_worker_that_knows_it(make, client, wait_until):
    first = make("first").start()
    task_id = client.submit("new.type").task_id
    wait_until(lambda: client.get(task_id).status is Status.PENDING, what="being put off")
    first.stop()
    second = make("second")
    second.task("new.type")(lambda payload, ctx: "known")
    second.start()
    done = client.wait(task_id, 5)
    assert (done.result, done.attempt, done.failures) == ("known", 1, 0)


def test_an_unknown_type_is_buried_after_the_grace(make, client):
    make(unknown_type_grace_s=0.5).start()
    task = run(client, "nobody.knows")
    assert (task.status, task.reason) == (Status.DEAD_LETTERED, "unknown_task_type")
    assert "nobody.knows" in json.dumps(task.error)


def test_pay_01_tickets_that_stand_for_nothing_do_not_hold_up_the_queue(make, client, server):
    keys = client.broker.keys
    worker = make()
    worker.task("echo")(lambda payload, ctx: None)
    bad = [client.submit("echo").task_id for _ in range(2)]
    server.call("SET", keys.payload(bad[0]), b'{"a":')
    server.call("DEL", keys.payload(bad[1]))
    stream = keys.stream("default", 5)
    server.call("XADD", stream, "*", "nothing", "known")
    server.call("XADD", stream, "*", "i", "f" * 32, "n", "1")
    worker.start()
    began = time.monotonic()
    assert run(client, "echo").status is Status.SUCCEEDED
    assert time.monotonic() - began < 1.5
    broken = client.queries.counts("default")
    assert broken[Status.DEAD_LETTERED] == 2
    assert server.call("XLEN", stream) == 0


def test_life_09_threads_that_hang_in_a_socket_are_replaced(make, client):
    worker = make(timeout_grace_s=0.3)
    near, far = socket.socketpair()

    @worker.task("hang", timeout_ms=500)
    def hang(payload, ctx):
        near.recv(1)

    worker.task("echo")(lambda payload, ctx: None)
    ids = [client.submit("hang", max_attempts=1).task_id for _ in range(4)]
    worker.start()
    began = time.monotonic()
    assert run(client, "echo").status is Status.SUCCEEDED
    assert time.monotonic() - began < 3
    for one in ids:
        task = client.wait(one, 5)
        assert (task.status, task.attempts[0].outcome) == (Status.DEAD_LETTERED, Disposition.TIMED_OUT)
    assert worker.supervisor.pool.abandoned == 4
    far.sendall(b"1234")
    near.close()
    far.close()


def test_a_timeout_is_retried(make, client):
    worker = make()

    @worker.task("slow.once", timeout_ms=200)
    def slow_once(payload, ctx):
        while ctx.attempt == 1:
            time.sleep(0.01)
        return "quick"

    worker.start()
    task = run(client, "slow.once")
    assert (task.result, task.attempt, task.failures) == ("quick", 2, 1)
    assert task.attempts[0].outcome is Disposition.TIMED_OUT
    assert 200 <= task.attempts[0].duration_ms < 1500


# --- cancel and progress ----------------------------------------------------------------------------------------------


def test_a_running_task_hears_of_its_cancellation_within_a_second_or_so(make, client, wait_until):
    heard = []
    worker = make()

    @worker.task("long")
    def long(payload, ctx):
        while True:
            if ctx.cancelled and not heard:
                heard.append(time.monotonic())
            time.sleep(0.01)

    worker.start()
    task_id = client.submit("long").task_id
    wait_until(lambda: runs(worker, task_id), what="the start")
    time.sleep(0.5)
    asked_at = time.monotonic()
    assert client.cancel(task_id).cancel_requested
    task = client.wait(task_id, 5)
    assert task.status is Status.CANCELLED
    assert heard[0] - asked_at < 1.3
    assert time.monotonic() - asked_at < 2
    with pytest.raises(TaskFinished):
        client.cancel(task_id)


def test_cancel_01_cancel_and_completion_agree_on_one_end(make, client):
    worker = make(worker_concurrency=8)
    worker.task("short")(lambda payload, ctx: time.sleep(payload["ms"] / 1000))
    worker.start()
    for n in range(100):
        task_id = client.submit("short", {"ms": n % 5}).task_id
        time.sleep((n % 7) / 1000)
        try:
            answer = client.cancel(task_id)
            expected = {Status.CANCELLED}
            assert answer.cancel_requested or answer.status is Status.CANCELLED
        except TaskFinished:
            expected = {Status.SUCCEEDED}
        first = client.wait(task_id, 5).status
        assert first in expected
        assert client.get(task_id).status is first


def test_progress_is_seen_while_the_task_runs(make, client, wait_until):
    release = threading.Event()
    worker = make()

    @worker.task("steps")
    def steps(payload, ctx):
        ctx.progress(0.25, "a quarter")
        ctx.progress(0.5, "half")
        release.wait(10)
        ctx.progress(0.9, "nearly")

    worker.start()
    task_id = client.submit("steps").task_id
    wait_until(lambda: (client.get(task_id).progress or {}).get("message") == "half", what="the report")
    release.set()
    client.wait(task_id, 5)
    assert client.get(task_id).progress["message"] == "nearly"


# --- delays -----------------------------------------------------------------------------------------------------------


def test_delays_are_kept_on_an_idle_worker(make, client):
    late_ms = []
    worker = make()
    worker.task("due")(lambda payload, ctx: late_ms.append((time.time() - payload["due"]) * 1000))
    worker.start()
    assert run(client, "due", {"due": time.time()}).status is Status.SUCCEEDED
    late_ms.clear()
    ids = []
    for n in range(10):
        delay_s = 0.3 + 0.13 * n
        ids.append(client.submit("due", {"due": time.time() + delay_s}, delay_seconds=delay_s).task_id)
    for one in ids:
        client.wait(one, 5)
    assert min(late_ms) > -5
    assert sorted(late_ms)[8] < 100


@pytest.mark.slow
def test_redis_15_20000_due_at_once_are_moved_without_holding_up_claims(make, client, server):
    worker = make(worker_concurrency=8, max_scheduled=100_000)
    worker.task("bulk")(lambda payload, ctx: None)
    worker.task("echo")(lambda payload, ctx: None)
    due = 1.0
    for _ in range(20):
        client.submit_many([{"task_type": "bulk", "delay_seconds": due, "queue": "bulk"}] * 1000)
    worker.start()
    waits = []
    ends_at = time.monotonic() + 4
    while time.monotonic() < ends_at:
        began = time.monotonic()
        run(client, "echo")
        waits.append(time.monotonic() - began)
        time.sleep(0.02)
    assert sorted(waits)[len(waits) * 9 // 10] < 0.5
    counts = client.queries.counts("bulk")
    assert counts[Status.PENDING] + counts[Status.QUEUED] == 20_000
    assert counts[Status.QUEUED] > 1000


# --- told from afar ---------------------------------------------------------------------------------------------------


def test_a_worker_that_is_told_to_be_quiet_ends_what_runs_and_one_told_to_stop_ends(make, client, wait_until):
    release = threading.Event()
    worker = make("w1")
    worker.task("waits")(lambda payload, ctx: release.wait(20))
    worker.start()
    running = client.submit("waits").task_id
    wait_until(lambda: runs(worker, running), what="the start")
    assert client.tell_worker("w1", "quiet")
    wait_until(lambda: client.queries.workers()[0].state == "quiet", what="the quiet", timeout_s=10)
    later = client.submit("waits").task_id
    release.set()
    assert client.wait(running, 10).status is Status.SUCCEEDED
    assert client.tell_worker("w1", "stop")
    wait_until(lambda: not client.queries.workers(), what="the end of the worker", timeout_s=20)
    assert client.get(later).status is Status.QUEUED, "it was not claimed"
