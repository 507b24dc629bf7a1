"""The figures that a worker serves of itself."""

from __future__ import annotations

import contextlib
import socket
import time
import urllib.request

import pytest

from dtq.client import Client
from dtq.settings import load_settings
from dtq.states import Status
from dtq.worker.state import Job
from dtq.worker.timings import MAX_SERIES, Timings
from tests.support.scrape import Scrape
from tests.support.servers import free_port
from tests.support.waiting import wait_until
from tests.support.workers import Workers, make_claim

BEYOND = ("_other", "_other")


@pytest.fixture
def workers(server, tmp_path):
    made = Workers(server.safe_url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def client(server):
    with Client(settings=load_settings(env_file=None, redis_url=server.safe_url)) as made:
        yield made


def scrape(port, path="/metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return Scrape(answer.read().decode())


def workers_figures(port):
    with contextlib.suppress(OSError):
        return scrape(port)


def test_a_worker_tells_how_long_tasks_waited_ran_and_took(workers, client):
    delayed = client.submit("echo_task", delay_seconds=0.3)
    first = [client.submit("sleep_task", {"seconds": 0.2}) for _ in range(3)]
    failing = client.submit("flaky_task", {"fail_times": 1})
    time.sleep(0.3)  # what waits now has waited for so long
    port = free_port()
    worker = workers.spawn(worker_metrics_port=port, retry_base_delay=0.4, retry_jitter=0)
    for task in [delayed, *first, failing]:
        assert client.wait(task.task_id, 15).status is Status.SUCCEEDED

    def counted():
        found = scrape(port)
        return found if found.one("dtq_worker_outcomes_total", outcome="succeeded") == 5 else None

    told = wait_until(counted, what="the outcomes to be counted")
    sleep = {"queue": "default", "task_type": "sleep_task"}
    assert told.one("dtq_task_execution_seconds_count", **sleep) == 3
    assert 0.6 <= told.one("dtq_task_execution_seconds_sum", **sleep) < 3
    assert told.one("dtq_task_execution_seconds_bucket", **sleep, le="0.1") == 0
    assert told.one("dtq_task_execution_seconds_bucket", **sleep, le="+Inf") == 3
    waited = told.one("dtq_task_wait_seconds_sum", **sleep)
    assert 0.9 <= waited < 60
    assert told.one("dtq_task_duration_seconds_sum", **sleep) == pytest.approx(waited + 0.6, abs=3)
    flaky = {"queue": "default", "task_type": "flaky_task"}
    assert told.one("dtq_task_duration_seconds_count", **flaky) == 1, "a task ends once"
    assert told.one("dtq_task_wait_seconds_count", **flaky) == 2
    assert told.one("dtq_retry_delay_seconds_sum", **flaky) == pytest.approx(0.4)
    assert told.one("dtq_worker_slots") == 4
    assert told.one("dtq_worker_redis_away") == 0
    assert told.one("dtq_worker_claimed_total") >= 6  # what waits for long is handed back, and claimed again
    assert told.one("process_resident_memory_bytes") > 10_000_000
    assert "dtq_worker_renewal_lag_seconds" in told.samples
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scrape(port, "/")
    assert worker.stop() == 0


def test_a_worker_whose_port_is_taken_says_so_once_and_works(workers, client):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        worker = workers.spawn(worker_metrics_port=taken.getsockname()[1])
        assert client.wait(client.submit("echo_task").task_id, 10).status is Status.SUCCEEDED
        assert worker.stop() == 0
    assert worker.log.count("no metrics: cannot listen on 127.0.0.1") == 1


def test_several_processes_have_a_port_each(workers, client):
    port = free_port()
    worker = workers.spawn("--processes", "2", "--metrics-port", str(port), ready=False)
    wait_until(lambda: len(client.queries.workers()) == 2, what="both processes", timeout_s=15)
    for one in (port, port + 1):
        wait_until(lambda: "cannot listen" in worker.log or scrape(one).one("dtq_worker_slots") == 4, what="figures")  # noqa: B023
    assert worker.stop() == 0


def test_a_silent_client_does_not_keep_others_from_the_figures(workers):
    port = free_port()
    workers.spawn(worker_metrics_port=port)

    wait_until(lambda: workers_figures(port), what="the figures")  # who connects too early may meet himself
    silent = socket.create_connection(("127.0.0.1", port), 5)
    assert scrape(port).one("dtq_worker_slots") == 4
    silent.close()


def test_a_flood_of_task_types_ends_in_one_line_for_all_others():
    timings = Timings()
    for number in range(MAX_SERIES + 50):
        timings.note(Job(make_claim(f"t{number}"), 0.0), Status.SUCCEEDED, time.monotonic())
    series = timings.series()
    assert len(series) == MAX_SERIES + 1
    assert sum(series[BEYOND]["duration"].counts) == 50
