"""Workers that die, stand still, or lose their lease: whose tasks run again, when, and who pays for it."""

from __future__ import annotations

import os
import threading
import time

import pytest

from dtq.client import Client
from dtq.settings import load_settings
from dtq.states import Disposition, Status
from tests.support.nursery import Nursery
from tests.support.workers import LocalWorker, Workers

TASKS = """
import os, time
from pathlib import Path
from dtq import task

@task("deadly")
def deadly(payload, ctx):
    os._exit(9)

@task("deadly.later")
def deadly_later(payload, ctx):
    time.sleep(0.5)
    os._exit(9)

@task("nap", timeout_ms=3_600_000)
def nap(payload, ctx):
    time.sleep(payload.get("seconds", 0.05))
    return ctx.attempt

@task("burn", timeout_ms=60_000)
def burn(payload, ctx):
    ends_at = time.monotonic() + payload["seconds"]
    number = 0
    while time.monotonic() < ends_at:
        number += 1
    return ctx.attempt
"""


@pytest.fixture
def workers(server, tmp_path):
    (tmp_path / "crash_tasks.py").write_text(TASKS)
    made = Workers(server.safe_url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def spawn(workers):
    def start(*arguments, **settings):
        settings.setdefault("visibility_timeout_s", 2)
        return workers.spawn(*arguments, tasks="crash_tasks", **settings)

    return start


@pytest.fixture
def client(server):
    with Client(settings=load_settings(env_file=None, redis_url=server.safe_url)) as made:
        yield made


@pytest.fixture
def local(server):
    made = []

    def start(worker_id="local", **settings):
        settings.setdefault("visibility_timeout_s", 2)
        worker = LocalWorker(server.safe_url, worker_id, **settings)
        made.append(worker)
        return worker

    yield start
    for worker in made:
        worker.stop(now=True)


def is_running(client, task_id):
    return client.get(task_id).status is Status.RUNNING


def test_life_02_task_of_a_killed_worker_is_run_again_soon_after_the_lease(spawn, client, wait_until):
    """SIGKILL leaves no chance to tidy up, and there is no other traffic: only the lease can bring the task back."""
    first = spawn("--name", "first")
    task_id = client.submit("nap", {"seconds": 60}).task_id
    wait_until(lambda: is_running(client, task_id), what="the claim")
    spawn("--name", "second")
    first.kill()
    killed_at = time.monotonic()
    wait_until(lambda: client.get(task_id).worker_id == "second", what="the second attempt", timeout_s=10)
    assert time.monotonic() - killed_at < 2 + 1.5
    task = client.get(task_id)
    assert (task.attempt, task.failures, task.crashes) == (2, 0, 0)
    assert task.attempts[0].outcome is Disposition.LOST


@pytest.mark.slow
def test_claim_04_all_that_a_dead_worker_held_is_run_by_one_that_runs_already(spawn, client, wait_until):
    first = spawn("--name", "first", "--concurrency", "3")
    ids = [client.submit("nap", {"seconds": 60 if n == 0 else 30}).task_id for n in range(3)]
    wait_until(lambda: all(is_running(client, one) for one in ids), what="the claims")
    second = spawn("--name", "second", "--concurrency", "8")
    first.kill()
    wait_until(lambda: {client.get(one).worker_id for one in ids} == {"second"}, what="the reclaim", timeout_s=12)
    assert second.process.poll() is None


@pytest.mark.slow
def test_life_13_a_kill_takes_nothing_from_the_retry_budget(spawn, client, wait_until):
    first = spawn("--name", "first")
    task_id = client.submit("nap", {"seconds": 1.0}, max_attempts=1).task_id
    wait_until(lambda: is_running(client, task_id), what="the claim")
    first.kill()
    spawn("--name", "second")
    task = client.wait(task_id, 15)
    assert task.status is Status.SUCCEEDED
    assert (task.attempt, task.failures, task.crashes) == (2, 0, 0)


@pytest.mark.parametrize(
    ("task_type", "beside", "starts"),
    [("deadly", 0, {4}), pytest.param("deadly.later", 30, {4, 5}, marks=pytest.mark.slow)],
)
def test_poison_01_a_task_that_kills_its_workers_ends_as_a_dead_letter_and_its_neighbours_do_not_pay(
    spawn, client, wait_until, task_type, beside, starts
):
    """One crash unsuspected, perhaps one beside other suspects, and three that are counted."""
    neighbours = [client.submit("nap", {"seconds": 1.0}).task_id for _ in range(beside)]
    poison = client.submit(task_type).task_id
    arguments = ("--processes", "2", "--concurrency", "40", "--name", "w")
    parent = spawn(*arguments, ready=False, max_crashes=3, visibility_timeout_s=1)
    task = wait_until(
        lambda: (found := client.get(poison)).terminal and found, what="the end of the poison", timeout_s=50
    )
    assert (task.status, task.reason) == (Status.DEAD_LETTERED, "worker_crashed")
    assert task.crashes == 3
    assert task.attempt in starts
    for one in neighbours:
        done = client.wait(one, 30)
        assert (done.status, done.crashes) == (Status.SUCCEEDED, 0)
    parent.stop()


def test_claim_01_a_task_longer_than_its_lease_starts_once(local, client):
    starts = []
    workers = [local(f"w{n}", visibility_timeout_s=1.0) for n in range(2)]
    for worker in workers:

        @worker.task("long")
        def long(payload, ctx):
            starts.append(ctx.attempt)
            time.sleep(4)

    for worker in workers:
        worker.start()
    done = client.wait(client.submit("long").task_id, 15)
    assert done.status is Status.SUCCEEDED
    assert starts == [1]


def test_claim_01_the_entry_of_a_running_task_is_never_idle_for_as_long_as_its_lease(local, client, server, wait_until):
    """Renewed at a third of the lease at the latest, without a delivery being counted or a payload being sent."""
    worker = local("w1", visibility_timeout_s=1.5)
    began = threading.Event()

    @worker.task("long")
    def long(payload, ctx):
        began.set()
        time.sleep(4)

    worker.start()
    task_id = client.submit("long", {"much": "x" * 200_000}).task_id
    assert began.wait(15), "a busy machine may hand it back before"
    stream, idle, deliveries = client.broker.keys.stream("default", 5), [], set()
    while not client.get(task_id).terminal:
        for row in server.call("XPENDING", stream, "workers", "-", "+", 10):
            idle.append(row[2])
            deliveries.add(row[3])
        time.sleep(0.02)
    assert client.get(task_id).attempt == 1
    assert len(deliveries) == 1
    assert sorted(idle)[len(idle) * 9 // 10] <= 750, "half a lease, where a third is meant and a CPU may be waited for"
    assert max(idle) < 1500


def test_claim_25_a_handler_that_holds_the_interpreter_for_longer_than_its_lease_is_started_twice_at_most_and_fenced(
    server, client, tmp_path, wait_until
):
    """Nothing of its worker can run, not even the renewal: another worker must think that it is dead."""
    nursery = Nursery(server.safe_url, "tests.crash.handlers", tmp_path, tmp_path / "ledger", visibility_timeout_s=1)
    try:
        first = nursery.spawn("first")
        task_id = client.submit("holds", {"seconds": 6}).task_id
        wait_until(lambda: client.get(task_id).worker_id == "first", what="the claim", timeout_s=10)
        nursery.spawn("second")
        wait_until(lambda: client.get(task_id).attempt == 2, what="the second start", timeout_s=10)
        done = client.wait(task_id, 20)
        assert (done.status, done.attempt, done.result, done.worker_id) == (Status.SUCCEEDED, 2, 2, "second")
        first.wait_for_log("claims are over")
        assert client.get(task_id) == done
        assert len(first.lines()) == 1
        assert client.wait(client.submit("quick").task_id, 10).status is Status.SUCCEEDED
    finally:
        nursery.close()


def test_life_06_a_drain_that_outlasts_the_lease_loses_no_claim_hears_cancellations_and_takes_nothing_new(
    local, client, wait_until
):
    starts = []
    workers = {name: local(name, visibility_timeout_s=1, drain_timeout_s=20) for name in ("first", "second")}
    for worker in workers.values():

        @worker.task("long")
        def long(payload, ctx):
            starts.append(ctx.task_id)
            ends_at = time.monotonic() + 3.5
            while time.monotonic() < ends_at:
                time.sleep(0.01)

    first = workers["first"].start()
    ids = [client.submit("long").task_id for _ in range(2)]
    wait_until(lambda: len(starts) == 2, what="the starts")
    ending = threading.Thread(target=first.stop)
    ending.start()
    wait_until(lambda: [one.state for one in client.queries.workers()] == ["draining"], what="the heartbeat to say so")
    workers["second"].start()
    late = client.submit("long").task_id
    time.sleep(0.5)
    client.cancel(ids[1])
    asked_at = time.monotonic()
    assert client.wait(ids[1], 5).status is Status.CANCELLED
    assert time.monotonic() - asked_at < 2.5
    for task in (client.wait(ids[0], 10), client.wait(late, 10)):
        assert (task.status, task.attempt) == (Status.SUCCEEDED, 1)
    assert client.get(ids[0]).worker_id == "first"
    assert client.get(late).worker_id == "second"
    assert sorted(starts) == sorted([*ids, late])
    ending.join(20)
    assert first.code == 0


@pytest.mark.slow
def test_claim_02_what_waits_behind_long_tasks_is_not_redelivered(local, client):
    starts = []
    workers = [local(f"w{n}", visibility_timeout_s=1.0, worker_concurrency=1) for n in range(2)]
    for worker in workers:

        @worker.task("long")
        def long(payload, ctx):
            starts.append((ctx.task_id, ctx.attempt))
            time.sleep(0.6)

    for worker in workers:
        worker.start()
    ids = [client.submit("long").task_id for _ in range(10)]
    for one in ids:
        assert client.wait(one, 20).status is Status.SUCCEEDED
    assert sorted(starts) == sorted((one, 1) for one in ids)


@pytest.mark.slow
def test_claim_25_busy_handlers_do_not_starve_the_renewals(spawn, client, wait_until):
    """Eight loops of pure Python for several leases: no task changes hands."""
    spawn("--name", "busy", "--concurrency", "8", visibility_timeout_s=4)
    ids = [client.submit("burn", {"seconds": 9}).task_id for _ in range(8)]
    wait_until(lambda: all(is_running(client, one) for one in ids), what="the starts", timeout_s=10)
    spawn("--name", "idle", "--concurrency", "8", visibility_timeout_s=4)
    for one in ids:
        done = client.wait(one, 40)
        assert (done.status, done.result, done.worker_id) == (Status.SUCCEEDED, 1, "busy")


def test_a_worker_stopped_while_it_leads_hands_the_lead_over(local, client, wait_until):
    first = local("first").start()
    wait_until(lambda: client.queries.leader() == "first", what="a leader")
    second = local("second")
    second.task("echo")(lambda payload, ctx: payload)
    second.start()
    wait_until(lambda: len(client.queries.workers()) == 2, what="both workers")
    stopped_at = time.monotonic()
    first.stop()
    wait_until(lambda: client.queries.leader() == "second", what="the next leader")
    assert time.monotonic() - stopped_at < 2
    done = client.wait(client.submit("echo", delay_seconds=0.3).task_id, 5)
    assert done.status is Status.SUCCEEDED


def test_claim_22_rolling_restarts_lose_nothing_and_run_nothing_twice(local, client):
    """200 tasks, half of them delayed, over ten workers that come and go."""
    runs = []
    lock = threading.Lock()

    def work(payload, ctx):
        with lock:
            runs.append(ctx.task_id)
        time.sleep(0.02)

    ids = [client.submit("work", delay_seconds=(n % 20) / 10 if n % 2 else 0).task_id for n in range(200)]
    for turn in range(10):
        worker = local(f"w{turn}", worker_concurrency=2)
        worker.task("work")(work)
        worker.start()
        time.sleep(0.25)
        assert worker.stop() == 0
    last = local("last", worker_concurrency=8)
    last.task("work")(work)
    last.start()
    for one in ids:
        assert client.wait(one, 20).status is Status.SUCCEEDED
    assert sorted(runs) == sorted(ids)


def test_a_worker_that_is_killed_is_off_the_list_after_a_while(spawn, client, wait_until):
    first = spawn("--name", "first", visibility_timeout_s=1)
    wait_until(lambda: [one.worker_id for one in client.queries.workers()] == ["first"], what="the heartbeat")
    first.kill()
    wait_until(lambda: client.queries.workers() == [], what="the end of its record", timeout_s=8)


def test_pids_are_told(spawn, client, wait_until):
    first = spawn("--name", "first")
    wait_until(client.queries.workers, what="the heartbeat")
    told = client.queries.workers()[0]
    assert told.pid == first.pid
    assert told.host == os.uname().nodename
