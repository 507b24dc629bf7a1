"""`python worker.py`: its command line, its signals, its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dtq.client import Client
from dtq.redisio.urls import hide_passwords
from dtq.settings import load_settings
from dtq.states import Status
from tests.support import PROJECT
from tests.support.servers import free_port
from tests.support.workers import Workers


@pytest.fixture
def workers(server, tmp_path):
    made = Workers(server.safe_url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def client(server):
    with Client(settings=load_settings(env_file=None, redis_url=server.safe_url)) as made:
        yield made


@pytest.fixture
def tasks(tmp_path):
    """Write a module of tasks beside the worker; returns its name."""

    def write(source, name="own_tasks"):
        (tmp_path / f"{name}.py").write_text(f"import os, sys, time\nfrom dtq import task\n{source}\n")
        return name

    return write


def status_of(client, task_id):
    return client.get(task_id).status


def test_it_says_who_it_is_and_runs_tasks_of_the_current_directory(workers, client, tasks, server):
    module = tasks("@task('own')\ndef own(payload, ctx): return os.getpid()")
    worker = workers.spawn("--queues", "mail,default", "--concurrency", "3", "--tasks", module, "--name", "first")
    line = worker.log.splitlines()[0]
    for text in ("worker first", "queues mail,default", "3 slots", hide_passwords(server.safe_url), "tasks own"):
        assert text in line
    done = client.wait(client.submit("own", queue="mail").task_id, 10)
    assert (done.status, done.result, done.worker_id) == (Status.SUCCEEDED, worker.pid, "first")
    assert worker.stop() == 0


def test_an_idle_worker_imports_no_flask_and_stays_small(workers, client, tasks):
    module = tasks(
        "@task('modules')\ndef modules(payload, ctx):\n"
        "    names = {name.partition('.')[0] for name in sys.modules}\n"
        "    with open('/proc/self/status') as status:\n"
        "        rss = next(line for line in status if line.startswith('VmRSS'))\n"
        "    return {'names': sorted(names), 'rss_kib': int(rss.split()[1])}"
    )
    worker = workers.spawn("--tasks", module, result_max_bytes=100_000)
    found = client.wait(client.submit("modules").task_id, 10).result
    unwanted = {"flask", "werkzeug", "jinja2", "gunicorn", "click", "fakeredis", "jsonschema", "prometheus_client"}
    assert unwanted.isdisjoint(found["names"])
    assert found["rss_kib"] < 55 * 1024
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--concurrency", "0"], "DTQ_WORKER_CONCURRENCY=0"),
        (["--queues", "A B"], "DTQ_QUEUES"),
        (["--tasks", "no_such_module"], "there is no module 'no_such_module'"),
        (["--drain-timeout", "soon"], "DTQ_DRAIN_TIMEOUT_S=soon"),
    ],
)
def test_settings_and_modules_that_cannot_be_are_exit_code_78(workers, arguments, words):
    worker = workers.spawn(*arguments, ready=False)
    assert worker.wait() == 78
    assert words in worker.log
    assert "Traceback" not in worker.log


def test_an_option_that_does_not_exist_is_a_usage_error(workers):
    worker = workers.spawn("--concurency", "3", ready=False)
    assert worker.wait() == 2
    worker = workers.spawn("--max-tasks", "0", ready=False)
    assert worker.wait() == 2


@pytest.mark.slow
def test_redis_out_of_reach_at_the_start_is_exit_code_69(tmp_path):
    made = Workers(f"redis://:s3cret@127.0.0.1:{free_port()}", tmp_path)
    worker = made.spawn(ready=False)
    try:
        assert worker.wait(25) == 69
        assert "cannot start" in worker.log
        assert worker.log.count("waiting for Redis") == 1
        assert worker.log.count("set DTQ_REDIS_URL to where it is") == 2
    finally:
        made.close()


def test_sec_01_no_password_is_ever_shown(server_factory, tmp_path):
    process = server_factory("valkey", tcp=True, options=("--requirepass", "right"))
    for password, code in (("s3cr%2Ft", 69), ("right", 0)):
        made = Workers(f"redis://:{password}@127.0.0.1:{process.port}", tmp_path)
        worker = made.spawn(ready=False)
        try:
            if code:
                assert worker.wait() == code
            else:
                worker.wait_for_log("slots, Redis")
                assert worker.stop() == code
            assert "s3cr" not in worker.log
            assert "right" not in worker.log
        finally:
            made.close()


def test_a_burst_ends_when_nothing_is_left_and_75_tells_of_failures(workers, client):
    ids = [client.submit("echo_task", {"n": n}).task_id for n in range(100)]
    assert workers.spawn("--burst", ready=False).wait() == 0
    assert {status_of(client, one) for one in ids} == {Status.SUCCEEDED}
    client.submit("permanent_fail_task")
    assert workers.spawn("--burst", ready=False).wait() == 75


def test_it_ends_after_max_tasks(workers, client):
    for _ in range(5):
        client.submit("echo_task")
    assert workers.spawn("--max-tasks", "3", ready=False).wait() == 0
    assert client.queries.counts("default")[Status.QUEUED] == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_life_07_a_signal_drains_and_the_running_task_ends_well(workers, client, wait_until, number):
    worker = workers.spawn()
    task_id = client.submit("sleep_task", {"seconds": 1.0}).task_id
    wait_until(lambda: status_of(client, task_id) is Status.RUNNING, what="the start")
    worker.signal(number)
    worker.wait_for_log("draining")
    assert worker.wait() == 0
    assert status_of(client, task_id) is Status.SUCCEEDED


def test_life_06_a_second_signal_hands_back_within_two_seconds(workers, client, wait_until):
    first = workers.spawn("--name", "first")
    task_id = client.submit("sleep_task", {"seconds": 2.0}).task_id
    wait_until(lambda: status_of(client, task_id) is Status.RUNNING, what="the start")
    first.signal(signal.SIGTERM)
    time.sleep(0.5)
    began = time.monotonic()
    first.signal(signal.SIGTERM)
    assert first.wait() == 1
    assert time.monotonic() - began < 2
    workers.spawn("--name", "second")
    done = client.wait(task_id, 10)
    assert (done.status, done.worker_id) == (Status.SUCCEEDED, "second")
    assert (done.attempt, done.failures, done.crashes) == (1, 0, 0)


def test_life_07_what_outlasts_the_drain_is_handed_back(workers, client, wait_until):
    worker = workers.spawn("--drain-timeout", "0.5")
    task_id = client.submit("progress_task", {"steps": 1000}, timeout_ms=120_000).task_id
    wait_until(lambda: client.get(task_id).progress, what="the handler's start, not only the claim")
    assert worker.stop() == 1
    task = client.get(task_id)
    assert (task.status, task.attempt, task.failures) == (Status.QUEUED, 0, 0)


def test_usr1_makes_it_quiet_and_usr2_shows_its_stacks(workers, client, wait_until):
    worker = workers.spawn("--name", "quiet-one")
    worker.signal(signal.SIGUSR1)
    wait_until(lambda: [one.state for one in client.queries.workers()] == ["quiet"], what="the heartbeat to tell")
    task_id = client.submit("echo_task").task_id
    worker.signal(signal.SIGUSR2)
    worker.wait_for_log("stacks of all threads")
    assert status_of(client, task_id) is Status.QUEUED
    assert worker.stop() == 0


@pytest.mark.slow
def test_check_tells_whether_the_heartbeat_is_fresh(workers, client, wait_until, tmp_path):
    def check(*arguments, url=workers.url):
        command = [sys.executable, str(PROJECT / "worker.py"), "--check", *arguments]
        environment = {**os.environ, "DTQ_REDIS_URL": url}
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False
        )

    assert check().returncode == 1
    worker = workers.spawn("--name", "checked", visibility_timeout_s=3)
    done = check("--name", "checked")
    assert (done.returncode, done.stdout) == (0, "alive: checked\n")
    assert check().returncode == 0
    other = check("--name", "another")
    assert other.returncode == 1
    assert "worker another" in other.stderr
    assert check(url=f"redis://127.0.0.1:{free_port()}").returncode == 69
    worker.kill()
    wait_until(lambda: check("--name", "checked").returncode == 1, what="the heartbeat to go stale", timeout_s=10)


def test_with_reload_it_begins_anew_when_its_tasks_change(workers, client, tasks, tmp_path, wait_until):
    module = tasks("@task('own')\ndef own(payload, ctx): return 1")
    worker = workers.spawn("--reload", "--tasks", module)
    assert client.wait(client.submit("own").task_id, 10).result == 1
    (tmp_path / f"{module}.py").write_text("def broken(:\n")
    worker.wait_for_log("cannot be read")
    assert client.wait(client.submit("own").task_id, 10).result == 1
    tasks("@task('own')\ndef own(payload, ctx): return 'two'")
    worker.wait_for_log("begins anew")
    wait_until(lambda: worker.log.count("slots, Redis") == 2, what="the new start", timeout_s=15)
    assert client.wait(client.submit("own").task_id, 10).result == "two"
    assert worker.stop() == 0


def test_log_lines_can_be_json(workers, client):
    worker = workers.spawn("--log-json", "--name", "json")
    client.wait(client.submit("permanent_fail_task").task_id, 10)
    assert worker.stop() == 0
    records = [json.loads(line) for line in worker.log.splitlines()]
    assert any(record.get("task_type") == "permanent_fail_task" for record in records)


def children(pid):
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_several_processes_share_the_work_and_end_together(workers, client, tasks, wait_until):
    module = tasks("@task('who')\ndef who(payload, ctx):\n    time.sleep(0.05)\n    return os.getpid()")
    parent = workers.spawn("--processes", "3", "--concurrency", "1", "--tasks", module, "--name", "many", ready=False)
    wait_until(lambda: len(client.queries.workers()) == 3, what="three heartbeats", timeout_s=15)
    assert sorted(one.worker_id for one in client.queries.workers()) == ["many-1", "many-2", "many-3"]
    ids = [client.submit("who").task_id for _ in range(30)]
    seen = {client.wait(one, 10).result for one in ids}
    assert seen == set(children(parent.pid))
    assert parent.stop() == 0
    assert client.queries.workers() == []


def test_a_process_that_dies_is_started_again(workers, client, wait_until):
    parent = workers.spawn("--processes", "2", ready=False)
    wait_until(lambda: len(client.queries.workers()) == 2, what="two heartbeats", timeout_s=15)
    before = children(parent.pid)
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: len(set(children(parent.pid)) - set(before)) == 1, what="a new process", timeout_s=15)
    assert "was killed by signal 9" in parent.log
    assert parent.stop() == 0


def test_ctrl_c_reaches_the_processes_once(workers, client, wait_until, tmp_path):
    """A terminal sends INT to its whole group: the children must still drain, not take it for a second signal."""
    parent = workers.spawn("--processes", "2", ready=False)
    wait_until(lambda: len(client.queries.workers()) == 2, what="two heartbeats", timeout_s=15)
    ids = [client.submit("sleep_task", {"seconds": 1.0}).task_id for _ in range(2)]
    wait_until(lambda: all(status_of(client, one) is Status.RUNNING for one in ids), what="the starts")
    parent.signal(signal.SIGINT)
    assert parent.wait() == 0
    assert {status_of(client, one) for one in ids} == {Status.SUCCEEDED}


def test_life_06_a_supervisor_that_signals_every_process_has_asked_once(workers, client, wait_until):
    """As systemd does with a service: the parent passes on what its children have heard already."""
    parent = workers.spawn("--processes", "2", ready=False)
    wait_until(lambda: len(client.queries.workers()) == 2, what="two heartbeats", timeout_s=15)
    ids = [client.submit("sleep_task", {"seconds": 1.5}).task_id for _ in range(2)]
    wait_until(lambda: all(status_of(client, one) is Status.RUNNING for one in ids), what="the starts")
    for pid in [*children(parent.pid), parent.pid]:
        os.kill(pid, signal.SIGTERM)
    assert parent.wait() == 0
    assert {client.get(one).attempt for one in ids} == {1}
    assert {status_of(client, one) for one in ids} == {Status.SUCCEEDED}


def test_life_06_a_second_signal_reaches_the_processes_too(workers, client, wait_until):
    parent = workers.spawn("--processes", "2", ready=False)
    wait_until(lambda: len(client.queries.workers()) == 2, what="two heartbeats", timeout_s=15)
    task_id = client.submit("sleep_task", {"seconds": 20}).task_id
    wait_until(lambda: status_of(client, task_id) is Status.RUNNING, what="the start")
    parent.signal(signal.SIGTERM)
    wait_until(lambda: parent.log.count("draining") >= 2, what="both to drain")
    began = time.monotonic()
    parent.signal(signal.SIGTERM)
    assert parent.wait() == 1
    assert time.monotonic() - began < 5
    assert status_of(client, task_id) is Status.QUEUED


def test_processes_of_a_killed_parent_end_too(workers, client, wait_until):
    parent = workers.spawn("--processes", "2", ready=False)
    wait_until(lambda: len(client.queries.workers()) == 2, what="two heartbeats", timeout_s=15)
    parent.kill()
    wait_until(lambda: client.queries.workers() == [], what="the end of the children", timeout_s=15)


def test_a_module_that_cannot_be_imported_ends_all_processes(workers):
    parent = workers.spawn("--processes", "3", "--tasks", "no_such_module", ready=False)
    assert parent.wait() == 78


def test_without_a_url_it_uses_the_embedded_server_of_the_directory(tmp_path, wait_until):
    made = Workers("", tmp_path)
    worker = made.spawn()
    try:
        assert "Redis embedded (unix://" in worker.log
        with Client(settings=load_settings(env_file=None, directory=tmp_path)) as client:
            done = client.wait(client.submit("echo_task", {"a": 1}).task_id, 10)
        assert done.result == {"a": 1}
        assert worker.stop() == 0
        wait_until(lambda: not list((tmp_path / ".dtq").glob("*.sock")), what="the server to stop")
    finally:
        made.close()
