"""What a running worker repairs: lost places, ghosts in a stream, leases that end in the moment a task does."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from itertools import pairwise

import pytest

from dtq.client import Client
from dtq.errors import RetryableError
from dtq.keys import GROUP
from dtq.settings import load_settings
from dtq.states import Disposition, Status
from tests.support.workers import LocalWorker


@pytest.fixture
def connect():
    made = []

    def client(url, **settings):
        made.append(Client(settings=load_settings(env_file=None, redis_url=url, **settings)))
        return made[-1]

    yield client
    for one in made:
        one.close()


@pytest.fixture
def make():
    made = []

    def worker(url, worker_id="local", **settings):
        made.append(LocalWorker(url, worker_id, **{"retry_base_delay": 0.05, "retry_max_delay": 0.1, **settings}))
        return made[-1]

    yield worker
    for one in made:
        one.stop(now=True)


def rss_kib():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmRSS")).split()[1])


def test_claim_07_pending_entries_that_were_deleted_are_cleared_away_and_the_others_run(
    any_server, make, connect, wait_until
):
    client = connect(any_server.safe_url)
    dead = make(any_server.safe_url, "dead", visibility_timeout_s=1)
    dead.supervisor.ticker.register()
    ids = [client.submit("echo").task_id for _ in range(3)]
    assert len(client.broker.claim("dead", ["default"], 3).claims) == 3
    stream = client.broker.keys.stream("default", 5)
    entries = any_server.call("XRANGE", stream, "-", "+")
    for entry, _ in entries[:2]:
        any_server.call("XDEL", stream, entry)
    worker = make(any_server.safe_url, "alive", visibility_timeout_s=1)
    worker.task("echo")(lambda payload, ctx: None)
    worker.start()
    assert client.wait(ids[2], 10).status is Status.SUCCEEDED
    wait_until(lambda: any_server.call("XPENDING", stream, GROUP)[0] == 0, what="no pending entry")
    assert worker.code is None


def test_claim_11_maintenance_never_takes_a_task_that_runs(server, make, connect):
    """Four workers, 1 000 short tasks, sweeps without a pause."""
    client = connect(server.safe_url)
    starts: dict[str, int] = defaultdict(int)
    lock = threading.Lock()

    def short(payload, ctx):
        with lock:
            starts[ctx.task_id] += 1

    workers = [make(server.safe_url, f"w{n}") for n in range(4)]
    for worker in workers:
        worker.task("short")(short)
        worker.start()
    stop = threading.Event()

    def sweep():
        while not stop.wait(0.02):
            client.broker.upkeep.reclaim()
            client.broker.upkeep.reconcile()

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    ids = [one.task_id for one in client.submit_many([{"task_type": "short"}] * 1000)]
    for one in ids:
        task = client.wait(one, 20)
        assert (task.status, task.attempt, task.crashes) == (Status.SUCCEEDED, 1, 0)
    stop.set()
    sweeper.join(5)
    assert set(starts.values()) == {1}


def test_claim_13_a_retry_and_a_redelivery_of_one_task_never_run_at_once(server, make, connect):
    """200 failures that are recorded just when their leases end, by workers that renew nothing."""
    client = connect(server.safe_url)
    runs = defaultdict(list)
    lock = threading.Lock()
    dice = random.Random(13)

    def fails_first(payload, ctx):
        began = time.monotonic()
        time.sleep(0.1 if ctx.attempt == 1 else 0.0)
        with lock:
            runs[ctx.task_id].append((began, time.monotonic(), ctx.attempt))
        if ctx.attempt == 1:
            raise RetryableError("at the very end")

    workers = [make(server.safe_url, f"w{n}", visibility_timeout_s=0.5, worker_concurrency=40) for n in range(2)]
    for worker in workers:
        worker.task("fails.first")(fails_first)
        worker.state.holdings.held_since = lambda moment: []
        worker.state.broker.commit = _at_the_end_of_the_lease(worker, dice)
        worker.start()
    ids = [one.task_id for one in client.submit_many([{"task_type": "fails.first"}] * 200)]
    late = 0
    for one in ids:
        task = client.wait(one, 30)
        assert task.status is Status.SUCCEEDED
        ordered = sorted(runs[one])
        assert [run[2] for run in ordered] == list(range(1, task.attempt + 1))
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(ordered))
        late += task.failures == 0
    assert 0 < late < 200, "both must have happened: the retry was first, and the redelivery was"


def _at_the_end_of_the_lease(worker, dice):
    commit = worker.state.broker.commit

    def late(worker_id, outcomes):
        if any(outcome.kind == "retry" for outcome in outcomes):
            first = min(job.claimed_at for job in worker.state.holdings.jobs())
            time.sleep(max(0.0, first + 0.5 + dice.uniform(-0.05, 0.15) - time.monotonic()))
        return commit(worker_id, outcomes)

    return late


def test_claim_27_tasks_without_a_place_are_put_back(server, make, connect, monkeypatch):
    monkeypatch.setattr("dtq.worker.scheduler.RECONCILE_REST_S", 0.2)  # the same steps, at a test's pace
    monkeypatch.setattr("dtq.worker.scheduler.RECONCILE_INTERVAL_S", 0.2)
    client = connect(server.safe_url)
    queued = [client.submit("echo").task_id for _ in range(5)]
    delayed = [client.submit("echo", delay_seconds=0.1).task_id for _ in range(5)]
    server.call("DEL", client.broker.keys.stream("default", 5))
    server.call("DEL", client.broker.keys.schedule())
    worker = make(server.safe_url)
    worker.task("echo")(lambda payload, ctx: None)
    worker.start()
    for one in queued + delayed:
        assert client.wait(one, 20).status is Status.SUCCEEDED


def test_sched_07_tasks_of_the_far_future_take_no_room_in_a_worker(server, make, connect):
    client = connect(server.safe_url, max_scheduled=100_000)
    for _ in range(20):
        client.submit_many([{"task_type": "later", "delay_seconds": 86_400}] * 1000)
    worker = make(server.safe_url)
    worker.task("echo")(lambda payload, ctx: None)
    before = rss_kib()
    worker.start()
    began = time.monotonic()
    assert client.wait(client.submit("echo").task_id, 5).status is Status.SUCCEEDED
    assert time.monotonic() - began < 1
    time.sleep(1.5)
    assert rss_kib() - before < 20 * 1024
    assert len(worker.state.holdings) == 0


def test_sched_07_a_delay_longer_than_the_lease_is_one_attempt(server, make, connect):
    client = connect(server.safe_url)
    worker = make(server.safe_url, visibility_timeout_s=0.5)
    worker.task("echo")(lambda payload, ctx: None)
    worker.start()
    task = client.wait(client.submit("echo", delay_seconds=2).task_id, 6)
    assert (task.status, task.attempt) == (Status.SUCCEEDED, 1)


def test_dlq_03_a_requeued_task_keeps_its_history_and_has_no_error_once_it_succeeds(server, make, connect):
    client = connect(server.safe_url)
    worker = make(server.safe_url)
    mended = threading.Event()

    @worker.task("mends")
    def mends(payload, ctx):
        if not mended.is_set():
            raise RetryableError(f"start {ctx.attempt}")

    worker.start()
    task = client.wait(client.submit("mends", max_attempts=3).task_id, 5)
    assert (task.status, task.failures) == (Status.DEAD_LETTERED, 3)
    mended.set()
    client.requeue(task.task_id)
    task = client.wait(task.task_id, 5)
    assert (task.status, task.error, task.attempt, task.failures, task.requeued) == (Status.SUCCEEDED, None, 1, 0, 1)
    told = [(one.outcome, one.message) for one in task.attempts]
    assert told == [
        (Disposition.FAILED, "start 1"),
        (Disposition.FAILED, "start 2"),
        (Disposition.FAILED, "start 3"),
        (Disposition.REQUEUED, "requeued by client"),
        (Disposition.SUCCEEDED, None),
    ]
