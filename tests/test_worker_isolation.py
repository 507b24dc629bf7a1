"""Handlers in a process of their own: killed at the deadline with their children, and never taking the worker along."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from multiprocessing import Pipe
from pathlib import Path

import pytest

from dtq.client import Client
from dtq.model import ErrorInfo, Outcome
from dtq.settings import load_settings
from dtq.states import Disposition, Status
from dtq.worker import messages
from dtq.worker.isolation import IsolatedProcess
from tests.support.workers import LocalWorker, Workers, make_claim

TASKS = """
import ctypes, os, subprocess, sys, time
import dtq
from dtq import PermanentError, RetryableError, Snooze, task

isolated = {"isolation": "process"}

@task("iso.who", **isolated)
def who(payload, ctx):
    return {"pid": os.getpid(), "payload": payload, "attempt": ctx.attempt, "key": ctx.idempotency_key,
            "remaining": ctx.remaining_s, "worker": ctx.worker_id, "parent": os.getppid()}

@task("iso.block", **isolated)
def block(payload, ctx):
    open(payload["file"], "w").write(str(os.getpid()))
    time.sleep(60)

@task("iso.family", **isolated)
def family(payload, ctx):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with open(payload["file"], "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(60)

@task("iso.segfault", **isolated)
def segfault(payload, ctx):
    if ctx.attempt == 1 or payload.get("always"):
        ctypes.string_at(0)
    return "survived"

@task("iso.exit", **isolated)
def leave(payload, ctx):
    os._exit(3)

@task("iso.raise", **isolated)
def fail(payload, ctx):
    raise {"permanent": PermanentError("no"), "again": RetryableError("again", after_s=0.05), "odd": ValueError("odd"),
           "snooze": Snooze(0.05) if ctx.attempt == 1 else None, "exit": SystemExit(1)}[payload["kind"]]

@task("iso.polite", **isolated)
def polite(payload, ctx):
    ctx.progress(0.5, "waiting")
    while not ctx.cancelled:
        time.sleep(0.01)
    ctx.raise_if_cancelled()

@task("iso.deaf", **isolated)
def deaf(payload, ctx):
    time.sleep(60)

@task("iso.steps", **isolated)
def steps(payload, ctx):
    for step in range(50):
        ctx.progress(step / 49, str(step))
    time.sleep(payload["seconds"])

@task("iso.result", **isolated)
def result(payload, ctx):
    return {"large": "x" * 20_000, "odd": object(), "none": None, "text": "é"}[payload["kind"]]

@task("iso.once", **isolated)
def once(payload, ctx):
    return dtq.idempotent_operation("once", 60, os.getpid)

@task("iso.submits", **isolated)
def submits(payload, ctx):
    return who.submit({"from": ctx.task_id}).task_id

@task("thread.echo")
def echo(payload, ctx):
    return os.getpid()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "iso_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    yield "iso_tasks"
    sys.modules.pop("iso_tasks", None)


@pytest.fixture
def client(server):
    with Client(settings=load_settings(env_file=None, redis_url=server.safe_url)) as made:
        yield made


@pytest.fixture
def worker(server, module):
    made = LocalWorker(
        server.safe_url, "iso", tasks=module, worker_concurrency=2, retry_base_delay=0.02, retry_max_delay=0.05
    )
    made.registry.load(module)
    yield made.start()
    made.stop(now=True)


def run(client, task_type, payload=None, timeout_s=15, **options):
    return client.wait(client.submit(task_type, payload, **options).task_id, timeout_s)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def is_running(client, task_id):
    return client.get(task_id).status is Status.RUNNING


def test_the_handler_runs_in_another_process_with_its_payload_and_context(worker, client):
    payload = {"id": 9007199254740993, "e": [], "u": "\u0000😀"}
    found = run(client, "iso.who", payload, idempotency_key="K", timeout_ms=5000).result
    assert found["pid"] != os.getpid()
    assert found["parent"] == os.getpid()
    assert (found["payload"], found["attempt"], found["key"], found["worker"]) == (payload, 1, "K", "iso")
    assert 4 < found["remaining"] <= 5


def test_a_process_is_used_again(worker, client):
    pids = {run(client, "iso.who").result["pid"] for _ in range(10)}
    assert len(pids) <= 2


def test_it_is_killed_at_the_deadline_however_it_blocks(worker, client, tmp_path):
    file = tmp_path / "pid"
    assert run(client, "iso.who").status is Status.SUCCEEDED
    task = run(client, "iso.block", {"file": str(file)}, timeout_ms=500, max_attempts=1)
    assert (task.status, task.reason) == (Status.DEAD_LETTERED, "exhausted")
    assert task.attempts[0].outcome is Disposition.TIMED_OUT
    assert 500 <= task.attempts[0].duration_ms < 1500
    assert not alive(int(file.read_text()))
    assert worker.supervisor.pool.abandoned == 0
    assert run(client, "iso.who").status is Status.SUCCEEDED


def test_its_own_children_are_killed_with_it(worker, client, tmp_path, wait_until):
    file = tmp_path / "pids"
    task = run(client, "iso.family", {"file": str(file)}, timeout_ms=1500, max_attempts=1)
    assert task.attempts[0].outcome is Disposition.TIMED_OUT
    wait_until(lambda: not any(alive(int(pid)) for pid in file.read_text().split()), what="their end")


def test_a_crash_fails_the_attempt_and_not_the_worker(worker, client):
    beside = client.submit("iso.who").task_id
    task = run(client, "iso.segfault")
    assert (task.result, task.attempt, task.failures, task.crashes) == ("survived", 2, 1, 0)
    assert "SIGSEGV" in task.attempts[0].message
    assert client.wait(beside, 5).status is Status.SUCCEEDED
    task = run(client, "iso.exit", max_attempts=2)
    assert (task.status, task.reason, task.failures) == (Status.DEAD_LETTERED, "exhausted", 2)
    assert "exit code 3" in task.attempts[0].message
    assert worker.code is None


def test_what_it_raises_is_judged_like_in_a_thread(worker, client):
    task = run(client, "iso.raise", {"kind": "permanent"})
    assert (task.status, task.reason, task.attempt) == (Status.DEAD_LETTERED, "permanent", 1)
    task = run(client, "iso.raise", {"kind": "again"}, max_attempts=2)
    assert (task.reason, task.failures) == ("exhausted", 2)
    assert "in fail" in task.attempts[0].traceback
    task = run(client, "iso.raise", {"kind": "odd"})
    assert (task.reason, task.error["class"]) == ("permanent", "ValueError")
    task = run(client, "iso.raise", {"kind": "exit"})
    assert (task.reason, task.error["class"]) == ("permanent", "SystemExit")


def test_results_are_kept_like_those_of_a_thread(worker, client):
    assert run(client, "iso.result", {"kind": "text"}).result == "é"
    assert run(client, "iso.result", {"kind": "none"}).result_state == "none"
    assert run(client, "iso.result", {"kind": "large"}).result_state == "too_large"
    assert run(client, "iso.result", {"kind": "odd"}).reason == "permanent"


@pytest.mark.parametrize("task_type", ["iso.polite", "iso.deaf"])
def test_a_cancelled_handler_is_told_and_then_its_process_ends(worker, client, wait_until, task_type):
    run(client, "iso.who")
    task_id = client.submit(task_type).task_id
    wait_until(lambda: is_running(client, task_id), what="the start")
    time.sleep(0.5)
    client.cancel(task_id)
    assert client.wait(task_id, 5).status is Status.CANCELLED
    assert run(client, "iso.who").status is Status.SUCCEEDED


def test_progress_is_seen_and_the_last_one_arrives(worker, client, wait_until):
    task_id = client.submit("iso.steps", {"seconds": 1.5}).task_id
    wait_until(
        lambda: is_running(client, task_id) and (client.get(task_id).progress or {}).get("message") == "49",
        what="the last report, while the task runs",
    )
    client.wait(task_id, 5)
    task_id = client.submit("iso.steps", {"seconds": 0}).task_id
    client.wait(task_id, 5)
    assert client.get(task_id).progress["message"] == "49"


def test_it_can_use_the_public_api(worker, client):
    first = run(client, "iso.once")
    assert first.result != os.getpid()
    assert run(client, "iso.once").result == first.result
    submitted = run(client, "iso.submits").result
    assert client.wait(submitted, 5).status is Status.SUCCEEDED


def test_a_shutdown_hands_back_what_runs_in_a_process(worker, client, wait_until, tmp_path):
    file = tmp_path / "pid"
    task_id = client.submit("iso.block", {"file": str(file)}).task_id
    wait_until(lambda: file.exists() and file.read_text(), what="the start")
    assert worker.stop(now=True) == 1
    task = client.get(task_id)
    assert (task.status, task.attempt, task.failures) == (Status.QUEUED, 0, 0)
    assert not alive(int(file.read_text()))


def test_the_process_of_a_killed_worker_ends_by_itself(server, client, module, tmp_path, wait_until):
    workers = Workers(server.safe_url, tmp_path)
    file = tmp_path / "pids"
    try:
        process = workers.spawn("--name", "killed", tasks=module)
        client.submit("iso.family", {"file": str(file)})
        wait_until(lambda: file.exists() and len(file.read_text().split()) == 2, what="the start", timeout_s=15)
        process.kill()
        wait_until(lambda: not any(alive(int(pid)) for pid in file.read_text().split()), what="their end")
    finally:
        workers.close()


def test_ctrl_c_does_not_reach_the_process_before_the_worker(server, client, module, tmp_path):
    workers = Workers(server.safe_url, tmp_path)
    try:
        process = workers.spawn("--name", "drained", tasks=module)
        pid = run(client, "iso.who").result["pid"]
        assert os.getsid(pid) != os.getsid(process.pid)
        process.signal(signal.SIGINT)
        assert process.wait() == 0
        assert not alive(pid)
    finally:
        workers.close()


def test_life_06_a_signal_to_all_processes_leaves_an_isolated_handler_to_its_worker(
    server, client, module, tmp_path, wait_until
):
    """A supervisor sends TERM to every process of a service: the handler is drained like any other."""
    workers = Workers(server.safe_url, tmp_path)
    try:
        process = workers.spawn("--name", "drained", tasks=module)
        task_id = client.submit("iso.steps", {"seconds": 1.5}).task_id
        wait_until(lambda: (client.get(task_id).progress or {}).get("message") == "49", what="the start", timeout_s=15)
        for pid in (_child_of(process.pid), process.pid):
            os.kill(pid, signal.SIGTERM)
        assert process.wait() == 0
        task = client.get(task_id)
        assert (task.status, task.attempt, task.failures) == (Status.SUCCEEDED, 1, 0)
    finally:
        workers.close()


def _child_of(pid):
    """Children are listed with the thread that has started them."""
    found = [one.read_text().split() for one in Path(f"/proc/{pid}/task").glob("*/children")]
    return int(next(pids[0] for pids in found if pids))


def test_a_process_that_cannot_start_fails_the_attempt(server, client, module, tmp_path):
    made = LocalWorker(server.safe_url, "broken", tasks="no_such_module_here", retry_base_delay=0.01)
    made.registry.load(module)
    made.start()
    try:
        task = run(client, "iso.who", max_attempts=2)
        assert (task.status, task.failures) == (Status.DEAD_LETTERED, 2)
        assert run(client, "thread.echo").result == os.getpid()
    finally:
        made.stop(now=True)


def test_a_worker_that_stood_still_while_the_process_started_leaves_the_task_to_others(worker, client, wait_until):
    """The ticker has not heard yet that the claim is over when the process says that it is ready."""
    job_of = {}
    started = IsolatedProcess._ready_connection

    def after_a_lease(self, job):
        connection = started(self, job)
        if job.claim.attempt == 1:
            job_of[job.claim.task_id] = job
            job.leased_at = -math.inf
        return connection

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(IsolatedProcess, "_ready_connection", after_a_lease)
        task_id = client.submit("iso.who").task_id
        wait_until(lambda: task_id in job_of and not worker.state.holdings.holds(job_of[task_id]), what="it to be left")
    assert worker.state.stats.stale == 1
    assert client.get(task_id).status is Status.RUNNING  # until its lease is over
    assert run(client, "iso.who").result["attempt"] == 1


def test_a_task_that_was_cancelled_while_the_process_started_does_not_start(worker, client, wait_until):
    started = IsolatedProcess._ready_connection

    def cancelled_meanwhile(self, job):
        connection = started(self, job)
        job.stop()
        return connection

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(IsolatedProcess, "_ready_connection", cancelled_meanwhile)
        task = client.wait(client.submit("iso.who").task_id, 15)
    assert (task.status, task.result) == (Status.CANCELLED, None)


def test_the_word_of_another_task_is_not_taken_for_this_ones(worker, client):
    """A copy that a handler forked may speak on the same connection, and late."""
    run(client, "iso.who")
    runner = next(one for one in worker.supervisor.pool._runners if one._isolated is not None)
    isolated = runner._isolated
    waits = isolated._waits

    def with_a_late_word(connection):
        found = waits(connection)
        ours, theirs = Pipe()
        theirs.send_bytes(messages.encode("done", claim=["0" * 32, 2], outcome={"kind": "succeed"}))
        isolated._connection = _Two(ours, connection)
        return found

    isolated._waits = with_a_late_word
    results = [run(client, "iso.who", {"n": n}) for n in range(4)]
    assert [one.result["payload"] for one in results] == [{"n": n} for n in range(4)]


class _Two:
    """Reads from the first connection while there is something, else from the second; writes to the second."""

    def __init__(self, first, second):
        self._first, self._second = first, getattr(second, "_second", second)

    def __getattr__(self, name):
        return getattr(self._second, name)

    def poll(self, timeout=0.0):
        return self._first.poll() or self._second.poll(timeout)

    def recv_bytes(self):
        return (self._first if self._first.poll() else self._second).recv_bytes()


def test_claims_and_outcomes_survive_the_way_between_the_processes():
    claim = make_claim(payload=b'{"u":"\xc3\xa9"}', extra=b'{"metadata":{}}', max_attempts=3, unknown_since=1.5)
    told = messages.decode(messages.encode("run", claim=messages.claim_as_dict(claim)))
    assert messages.claim_from_dict(told["claim"]) == claim
    for outcome in (
        Outcome(claim=claim, kind="succeed", result='"é"'.encode(), duration_ms=3),
        Outcome(
            claim=claim,
            kind="dead",
            reason="permanent",
            error=ErrorInfo("A", "b", "c"),
            disposition=Disposition.TIMED_OUT,
            max_attempts=4,
        ),
    ):
        told = messages.decode(messages.encode("done", outcome=messages.outcome_as_dict(outcome)))
        assert messages.outcome_from_dict(claim, told["outcome"]) == outcome
