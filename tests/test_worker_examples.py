"""The example tasks do what they say."""

from __future__ import annotations

import pytest

from dtq import registry
from dtq.client import Client
from dtq.errors import InvalidTask
from dtq.settings import load_settings
from dtq.states import Status
from tests.support.workers import LocalWorker


@pytest.fixture
def client(server):
    with Client(settings=load_settings(env_file=None, redis_url=server.safe_url)) as made:
        yield made


@pytest.fixture
def worker(server, client, monkeypatch):
    monkeypatch.setenv("DTQ_REDIS_URL", server.safe_url)  # for what a task does through the public API
    made = LocalWorker(server.safe_url, retry_base_delay=0.02, retry_max_delay=0.05)
    made.registry.load("examples.tasks")
    yield made.start()
    made.stop(now=True)
    used = registry.use_client()
    if used is not None:
        used.close()


def run(client, task_type, payload=None, **options):
    return client.wait(client.submit(task_type, payload, **options).task_id, 10)


def test_all_of_them_are_registered():
    registry.default.load("examples.tasks")
    assert set(registry.default.names()) >= {
        "echo_task", "sleep_task", "fibonacci_task", "flaky_task", "always_fail_task", "permanent_fail_task",
        "counter_task", "slow_task", "progress_task",
    }  # fmt: skip


def test_echo_returns_its_payload(worker, client):
    assert run(client, "echo_task", {"a": [1, "é"]}).result == {"a": [1, "é"]}


def test_sleep_sleeps_and_ends_early_when_cancelled(worker, client, wait_until):
    assert run(client, "sleep_task", {"seconds": 0.1}).result == {"slept_s": 0.1}
    task_id = client.submit("sleep_task", {"seconds": 20}).task_id
    wait_until(lambda: client.get(task_id).status is Status.RUNNING, what="the start")
    client.cancel(task_id)
    assert client.wait(task_id, 3).status is Status.CANCELLED


def test_fibonacci_counts_far_and_its_payload_is_checked(worker, client, wait_until):
    assert run(client, "fibonacci_task", {"n": 10}).result == {"n": 10, "fibonacci": "55"}
    assert len(run(client, "fibonacci_task", {"n": 30_000}).result["fibonacci"]) == 6270
    wait_until(lambda: "fibonacci_task" in client.queries.handlers(), what="the schema to be published")
    fresh = Client(settings=client.settings)
    with fresh, pytest.raises(InvalidTask):
        fresh.submit("fibonacci_task", {"n": "many"})


def test_flaky_fails_as_often_as_it_is_told(worker, client):
    task = run(client, "flaky_task", {"fail_times": 3})
    assert (task.status, task.attempt, task.failures) == (Status.SUCCEEDED, 4, 3)


def test_the_failing_ones_end_as_dead_letters(worker, client):
    always = run(client, "always_fail_task")
    assert (always.status, always.reason, always.attempt) == (Status.DEAD_LETTERED, "exhausted", 3)
    permanent = run(client, "permanent_fail_task", {"message": "no way"})
    assert (permanent.status, permanent.reason, permanent.attempt) == (Status.DEAD_LETTERED, "permanent", 1)
    assert permanent.error["message"] == "no way"


def test_slow_and_progress_tell_how_far_they_are(worker, client):
    assert run(client, "slow_task", {"seconds": 0.2}).progress["fraction"] == 1.0
    assert run(client, "progress_task", {"steps": 5, "step_s": 0.01}).progress["message"] == "5 of 5"


def test_counter_counts_once_for_a_key(worker, client):
    first = run(client, "counter_task", {"key": "a"})
    second = run(client, "counter_task", {"key": "a"})
    assert first.task_id != second.task_id
    assert first.result["counted"] == second.result["counted"]
