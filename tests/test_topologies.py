"""Redis as people run it: the same work over TLS, as a restricted user, over a socket, with Sentinel, on a Cluster."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from dtq import PermanentError, RetryableError
from dtq.client import Client
from dtq.deadletters import DeadFilter
from dtq.errors import DtqError, IdempotencyInProgress, MessageLost, RedisUnavailable
from dtq.events import EventFilter
from dtq.figures import read_figures
from dtq.queries import TaskFilter
from dtq.redisio import Server
from dtq.settings import load_settings
from dtq.states import Status
from tests.support.servers import find_program
from tests.support.topologies import WAYS, Cluster, Sentinels, restricted_user_on_cluster
from tests.support.waiting import wait_until
from tests.support.workers import LocalWorker


class Work:
    """A worker with handlers that do what handlers do, and a client."""

    def __init__(self, url, **settings):
        self.client = Client(settings=load_settings(env_file=None, redis_url=url, **settings))
        self.worker = LocalWorker(url, visibility_timeout_s=2, retry_base_delay=0.02, **settings)
        self.release = threading.Event()
        self.runs = itertools.count(1)
        self.worker.task("echo")(lambda payload, ctx: payload)
        self.worker.task("flaky")(self.flaky)
        self.worker.task("bad")(self.bad)
        self.worker.task("once")(self.once)
        self.worker.task("slow")(self.slow)
        self.worker.start()

    def flaky(self, payload, ctx):
        if ctx.attempt == 1:
            raise RetryableError("not yet")
        ctx.progress(0.5, "halfway")
        return {"attempt": ctx.attempt}

    def bad(self, payload, ctx):
        raise PermanentError("never")

    def once(self, payload, ctx):
        return self.client.idempotent_operation("effect", 60, lambda: next(self.runs))

    def slow(self, payload, ctx):
        while not self.release.wait(0.02):
            ctx.raise_if_cancelled()

    def ended(self, task):
        return self.client.wait(task.task_id, 20)

    def close(self):
        assert self.worker.stop() == 0
        self.client.close()


@pytest.fixture(params=[*WAYS.values(), restricted_user_on_cluster], ids=lambda way: way.__name__)
def work(request, tmp_path):
    with request.param(tmp_path) as process:
        made = Work(process.url)
        yield made
        made.close()


def test_the_engine_and_the_message_queue_work_whatever_way_redis_is_run(work):
    client = work.client
    many = client.submit_many([{"task_type": "echo", "payload": {"n": n}, "priority": n % 10} for n in range(150)])
    for task in many:
        assert work.ended(task).status is Status.SUCCEEDED
    assert [work.ended(many[n]).result for n in (0, 149)] == [{"n": 0}, {"n": 149}]

    assert work.ended(client.submit("flaky", delay_seconds=0.1)).result == {"attempt": 2}
    assert [work.ended(client.submit("once")).result for _ in range(2)] == [1, 1]

    dead = work.ended(client.submit("bad", idempotency_key="k"))
    assert (dead.status, dead.reason) == (Status.DEAD_LETTERED, "permanent")
    assert client.submit("bad", idempotency_key="k").duplicate
    client.requeue(dead.task_id)
    assert work.ended(dead).requeued == 1
    letters = client.queries.dead_letters.page(DeadFilter(), 10, None).letters
    assert [letter.task_id for letter in letters] == [dead.task_id]

    slow = client.submit("slow")
    wait_until(lambda: client.get(slow.task_id).status is Status.RUNNING, what="the start")
    client.cancel(slow.task_id)
    assert work.ended(slow).status is Status.CANCELLED

    client.pause("default")
    held = client.submit("echo")
    assert client.cancel(held.task_id).status is Status.CANCELLED
    client.resume("default")

    finished = client.tasks(TaskFilter(status=Status.SUCCEEDED), limit=200).tasks
    assert len(finished) == 153
    assert client.queries.queue("default").depth == 0
    kinds = {event.type for event in client.events.history.newest(EventFilter(), 100).events}
    assert {"TASK_QUEUED", "TASK_STARTED", "TASK_CANCELLED", "TASK_DEAD_LETTERED"} <= kinds
    figures = read_figures(client.server, client.queries, client.settings)
    assert figures.counters["default", "echo"]["succeeded"] == 150
    assert figures.workers == 1

    queue = client.queue("orders")
    queue.put("new", b"\x00\xff", key="one")
    assert not queue.put("new", b"again", key="one")
    with queue.subscribe(["new"]) as subscription, subscription.receive(10) as message:
        assert (message.data, message.key) == (b"\x00\xff", "one")
    assert queue.stats().depth == 0


class Load:
    """Somebody who submits without a pause, with a key for each task, and keeps at it when Redis is away."""

    def __init__(self, client):
        self.accepted = {}
        self.refusals = 0
        self._client = client
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        for number in itertools.count():
            while not self._stop.is_set():
                try:
                    task = self._client.submit("echo", {"n": number}, idempotency_key=str(number))
                except IdempotencyInProgress:
                    break
                except (RedisUnavailable, DtqError):
                    self.refusals += 1
                    self._stop.wait(0.05)
                else:
                    self.accepted[task.task_id] = number
                    break
            if self._stop.wait(0.005):
                return

    def grows(self, by=50):
        before = len(self.accepted)
        wait_until(lambda: len(self.accepted) >= before + by, what="more submissions", timeout_s=40)

    def stop(self):
        self._stop.set()
        self._thread.join(30)


class Messages:
    """Somebody who puts messages, a key for each, and somebody who takes them, both through whatever happens."""

    def __init__(self, client):
        self.offered, self.got = 0, set()
        self._queue = client.queue("orders", visibility_timeout_s=2, tombstone_ttl_s=60)
        self._subscription = self._queue.subscribe(["a"], prefetch=20)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._put_all, self._take_all)]
        for thread in self._threads:
            thread.start()

    def _put_all(self):
        while not self._stop.wait(0.01):
            if self._offer(self.offered):
                self.offered += 1

    def _offer(self, number):
        try:
            self._queue.put("a", str(number).encode(), key=str(number))
        except RedisUnavailable:
            return False
        return True

    def _take_all(self):
        with self._subscription:
            for message in self._subscription:
                try:
                    with message:
                        self.got.add(message.data.decode())
                except (RedisUnavailable, MessageLost):  # it comes again
                    pass

    def assert_all_arrived(self, *, repaired=False):
        """repaired: what was put is offered again first, as a loop does that keeps the truth elsewhere."""
        self._stop.set()
        for number in range(self.offered if repaired else 0):
            wait_until(lambda: self._offer(number), what="the put", timeout_s=30)  # noqa: B023
        wanted = {str(number) for number in range(self.offered)}
        wait_until(lambda: not wanted - self.got, what="every message", timeout_s=30)
        wait_until(lambda: self._queue.stats().depth == 0, what="the last acknowledgement", timeout_s=30)
        self._subscription.close()
        for thread in self._threads:
            thread.join(30)
        assert self.offered > 50


def assert_all_ran(work, load):
    """Every task that was accepted has succeeded, with what it was given."""
    for task_id, number in load.accepted.items():
        ended = wait_until(lambda: _succeeded(work.client, task_id), what=f"task {number}", timeout_s=30)  # noqa: B023
        assert ended.result == {"n": number}


def _succeeded(client, task_id):
    try:
        task = client.get(task_id)
    except RedisUnavailable:
        return None
    return task if task.status is Status.SUCCEEDED else None


@pytest.mark.timeout(150)
@pytest.mark.slow
def test_a_failover_in_the_middle_of_a_load_loses_nothing_that_was_told_to_be_durable():
    topology = Sentinels(find_program("valkey"), replica=True, aof=True)
    try:
        work = Work(topology.start().url, durable_writes=True)
        for process in (topology.master, topology.replica):
            server = Server.connect(process.url)
            server.call("CONFIG", "SET", "appendfsync", "always")
            server.close()
        load, messages = Load(work.client), Messages(work.client)
        load.grows()
        topology.master.kill()
        load.grows()
        load.stop()
        messages.assert_all_arrived(repaired=True)  # a put is not waited for until a replica has it
        assert load.refusals > 0, "it was away for a moment"
        assert_all_ran(work, load)
        work.close()
    finally:
        topology.remove()


@pytest.mark.timeout(150)
@pytest.mark.slow
def test_a_node_of_the_cluster_that_is_restarted_in_the_middle_of_a_load_loses_nothing():
    topology = Cluster(find_program("valkey"), size=3, aof=True)
    try:
        work = Work(topology.start().url, durable_writes=True)
        node = topology.holder()
        own = Server.connect(node.url)
        own.call("CONFIG", "SET", "appendfsync", "always")
        own.close()
        load, messages = Load(work.client), Messages(work.client)
        load.grows()
        node.kill()
        time.sleep(0.5)
        node.start()
        load.grows()
        load.stop()
        messages.assert_all_arrived()
        assert_all_ran(work, load)
        work.close()
    finally:
        topology.remove()
