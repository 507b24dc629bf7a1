"""`GET /metrics`: exact, monotone, bounded, and told also when Redis is away (contract, section 17)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from dtq.model import Outcome
from dtq.redisio import Server
from dtq.states import Disposition, Status
from dtq.taskfilter import TaskFilter
from dtq.web import meters
from tests.conftest import ServerFactory
from tests.support import PROJECT
from tests.support.engine import Engine
from tests.support.scrape import Labels, Scrape
from tests.support.servers import ServerProcess
from tests.support.waiting import wait_until
from tests.support.web import Api, running_api
from tests.support.web_server import WebServer, running_web

NAMES = {
    *("dtq_tasks_submitted_total", "dtq_tasks_started_total", "dtq_tasks_succeeded_total", "dtq_tasks_failed_total"),
    *("dtq_tasks_retried_total", "dtq_tasks_dead_lettered_total", "dtq_tasks_completed_total"),
    *("dtq_task_attempts_total", "dtq_ingest_rejected_total", "dtq_duplicates_absorbed_total", "dtq_queue_depth"),
    *("dtq_queue_pending", "dtq_queue_oldest_age_seconds", "dtq_retry_scheduled", "dtq_dlq_depth"),
    *("dtq_workers_active", "dtq_worker_inflight"),
}
"""Those of the contract, without the histograms, which workers tell."""


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with running_api(server.safe_url) as api:
        yield api


def scrape(api: Api, query: str = "") -> Scrape:
    response = api.http.get(f"/metrics{query}")
    assert response.status_code == 200
    assert response.content_type.startswith("text/plain")
    return Scrape(response.text)


def test_every_figure_of_the_contract_is_told_and_counts_what_happened(api: Api) -> None:
    api.register_worker()
    for _ in range(4):
        api.post(priority=7)
    api.succeed(api.claim())
    api.bury(api.claim())
    broker, worker_id = api.client.broker, api.worker_id
    broker.commit(
        worker_id, [Outcome(claim=api.claim(), kind="retry", delay_ms=60_000, disposition=Disposition.FAILED)]
    )
    running = api.claim()
    waiting = api.post(priority=2)
    api.client.cancel(waiting["task_id"])
    api.post(priority=2, delay_seconds=3600)
    api.post(priority=0)
    assert api.http.post("/api/v1/tasks", json={"task_type": 7}).status_code == 400
    assert api.http.post("/api/v1/tasks/batch", json={"tasks": [{"queue": "x"}]}).status_code == 200

    told = scrape(api)
    assert NAMES - {"dtq_duplicates_absorbed_total"} <= told.samples.keys(), "a counter is told once it has counted"
    pair = {"queue": "default", "task_type": "echo"}
    counted = {name: told.one(f"dtq_tasks_{name}_total", **pair) for name in
               ("submitted", "started", "succeeded", "failed", "retried", "dead_lettered")}  # fmt: skip
    assert counted == {
        "submitted": 7, "started": 4, "succeeded": 1, "failed": 1, "retried": 1, "dead_lettered": 1,
    }  # fmt: skip
    assert told.one("dtq_tasks_reclaimed_total", **pair) == 0, "told before the first, or increase() would not see it"
    for status, number in {"succeeded": 1, "dead_lettered": 1, "cancelled": 1}.items():
        assert told.one("dtq_tasks_completed_total", **pair, status=status) == number
    for result, number in {"succeeded": 1, "failed": 2, "cancelled": 0}.items():
        assert told.one("dtq_task_attempts_total", **pair, result=result) == number
    assert told.one("dtq_queue_depth", queue="default", priority="7") == 1
    assert told.one("dtq_queue_ready", queue="default", priority="7") == 0
    assert told.one("dtq_queue_ready", queue="default", priority="0") == 1
    assert told.one("dtq_queue_pending", queue="default") == 1
    assert told.one("dtq_retry_scheduled") == 2
    assert told.one("dtq_dlq_depth") == 1
    assert told.one("dtq_workers_active") == 1
    assert told.one("dtq_redis_up") == 1
    assert told.one("dtq_ingest_rejected_total", queue="_unknown", reason="invalid_task") >= 2
    assert told.one("dtq_http_request_duration_seconds_count", method="POST", route="/api/v1/tasks", status="400") >= 1
    assert running.task_id not in told.text


def test_prio_01_the_oldest_task_of_a_starved_band_is_told(api: Api) -> None:
    starved = api.post(priority=0)
    late = api.post(priority=5, delay_seconds=3600)
    keys, server = api.client.broker.keys, api.client.server
    server.call("HSET", keys.task(starved["task_id"]), "created", int((time.time() - 600) * 1e6))
    server.call("HSET", keys.task(late["task_id"]), "created", int((time.time() - 3600) * 1e6))
    server.call("ZADD", keys.schedule(), 1, late["task_id"])
    server.call("HSET", keys.task(late["task_id"]), "available", int((time.time() - 5) * 1000))
    api.client.broker.upkeep.promote()
    for _ in range(3):
        api.post(priority=9)
        api.succeed(api.claim())
    told = scrape(api)
    age = {band: told.one("dtq_queue_oldest_age_seconds", queue="default", priority=str(band)) for band in range(10)}
    assert 600 <= age[0] < 660
    assert 5 <= age[5] < 60, "a delay is no waiting"
    assert age[9] == 0


def test_redis_20_the_depth_is_that_of_the_live_entries_whatever_was_deleted(any_server: Server) -> None:
    engine = Engine(any_server)
    ids = engine.submit_many(1000)
    claimed = [claim.task_id for _ in range(2) for claim in engine.claim()]
    cancelled = [one for one in ids if one not in claimed][100:400]
    for task_id in cancelled:
        engine.cancel(task_id)
    with running_api(any_server.safe_url) as api:
        told = scrape(api)
    assert told.one("dtq_queue_ready", queue="default", priority="5") == 500
    assert told.one("dtq_queue_pending", queue="default") == 200
    assert told.one("dtq_queue_depth", queue="default", priority="5") == 700
    assert told.one("dtq_tasks_completed_total", queue="default", task_type="echo", status="cancelled") == 300


def test_claim_07_and_27_what_was_deleted_by_hand_is_counted(any_server: Server) -> None:
    engine = Engine(any_server, unknown_type_grace_s=0)
    engine.register("w1", lease_s=0.001)
    engine.submit_many(3)
    entries = [engine.field(claim.task_id, "entry") for claim in engine.claim()]
    any_server.call("XDEL", engine.keys.stream("default", 5), *entries[:2])
    engine.reclaim("w1")
    engine.reconcile_all()
    with running_api(any_server.safe_url) as api:
        told = scrape(api)
        assert told.sum("dtq_claim_deleted_total", queue="default") == 2
        assert told.one("dtq_reconciled_total", queue="default", task_type="echo") == 2
        assert told.sum("dtq_task_attempts_total", result="lost") == 3
        any_server.call("XADD", engine.keys.stream("default", 9), "*", "id", "f" * 32, "seq", 1, "attempt", 1)
        engine.claim()
        assert scrape(api).sum("dtq_duplicates_absorbed_total", queue="default") == 1


def test_names_from_outside_do_not_make_lines_without_end(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtq.web.meters.MAX_QUEUES", 5 + len(meters._known_queues))
    before = scrape(api)

    def refused(told: Scrape) -> dict[Labels, float]:
        found = told.samples.get("dtq_ingest_rejected_total", {})
        return {labels: value for labels, value in found.items() if ("reason", "idempotency_key_reused") in labels}

    for number in range(150):
        api.post(queue=f"q{number}", task_type=f"t{number}")
    for number in range(20):
        api.http.open(f"/nowhere/{number}", method=f"M{number}")
        response = api.http.post("/api/v1/tasks", json={"task_type": "a", "queue": f"r{number}", "max_attempts": 1})
        api.http.post(
            "/api/v1/tasks",
            json={"task_type": "b", "queue": f"r{number}", "idempotency_key": "k"},
        )
        again = api.http.post("/api/v1/tasks", json={"task_type": "c", "queue": f"r{number}", "idempotency_key": "k"})
        assert (response.status_code, again.status_code) == (202, 422)
    told = scrape(api)
    submitted = told.samples["dtq_tasks_submitted_total"]
    assert len(submitted) == 101, "a hundred queues and one line for all others"
    assert sum(submitted.values()) == 190
    assert told.one("dtq_tasks_submitted_total", queue="_other", task_type="_other") == 90
    assert told.one("dtq_queue_depth", queue="_other", priority="_other") == 90
    assert sum(told.samples["dtq_queue_depth"].values()) == 190
    assert len(refused(told)) - len(refused(before)) <= 6
    assert sum(refused(told).values()) - sum(refused(before).values()) == 20
    requests = told.samples["dtq_http_request_duration_seconds_count"]
    assert {dict(labels)["method"] for labels in requests} <= {*meters._METHODS, "other"}
    assert not any(dict(labels)["route"].startswith("/nowhere") for labels in requests)
    per_queue = 4 * 10
    others = [line for line in told.text.splitlines() if "http_request" not in line]  # those grow with the tests before
    assert len(others) < 100 * per_queue + 600


def test_without_redis_it_says_so_and_tells_the_rest(server_factory: ServerFactory) -> None:
    process = server_factory()
    with running_api(process.url) as api:
        api.post()
        process.kill()
        told = scrape(api)
        assert told.one("dtq_redis_up") == 0
        assert "dtq_tasks_submitted_total" not in told.samples
        assert told.sum("dtq_http_request_duration_seconds_count", route="/api/v1/tasks", status="202") >= 1


def test_a_caller_may_ask_for_some_names_or_for_another_format(api: Api) -> None:
    api.post()
    told = scrape(api, "?name[]=dtq_tasks_submitted_total&name[]=dtq_redis_up")
    assert set(told.samples) == {"dtq_tasks_submitted_total", "dtq_redis_up"}
    assert scrape(api, "?name[]=").samples == {}
    answer = api.http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.content_type.startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    odd = api.http.get("/metrics", headers={"Accept": "text/plain;version=x"})
    assert odd.status_code == 200


def test_where_reading_needs_a_key_so_do_the_figures(server: Server) -> None:
    with running_api(server.safe_url, api_key="secret-key", protect="all") as api:
        assert api.http.get("/metrics").status_code == 401
        assert api.http.get("/metrics", headers={"X-API-Key": "secret-key"}).status_code == 200


def web_scrape(web: WebServer) -> Scrape:
    answer = web.call("GET", "/metrics")
    assert answer.status == 200
    return Scrape(answer.body.decode())


@pytest.mark.slow
def test_met_01_totals_are_exact_over_processes_recycles_restarts_purge_and_retention(
    server: Server, valkey: ServerProcess
) -> None:
    """Four processes, a thousand submissions; every scrape, whichever process answers, tells the last total or more."""
    engine = Engine(server, task_retention_s=1)
    seen = 0.0

    def look(times: int, web: WebServer) -> float:
        nonlocal seen
        for _ in range(times):
            total = web_scrape(web).sum("dtq_tasks_submitted_total")
            assert total >= seen, "a total went back"
            seen = total
        return seen

    batch = json.dumps({"tasks": [{"task_type": "echo"}] * 100}).encode()
    with running_web(server.safe_url, web_processes=4, worker_metrics_port=0) as web:
        for _ in range(10):
            assert web.call("POST", "/api/v1/tasks/batch", batch, Content_Type="application/json").status == 200
            look(1, web)
        assert look(20, web) == 1000
        path = {"method": "POST", "route": "/api/v1/tasks/batch", "status": "200"}
        assert web_scrape(web).one("dtq_http_request_duration_seconds_count", **path) == 10
        killed = web.worker_pids()[0]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: killed not in web.worker_pids() and len(web.worker_pids()) == 4, "another process", 20)
        web.wait_until_up()
        assert web_scrape(web).one("dtq_http_request_duration_seconds_count", **path) == 10
        assert look(5, web) == 1000
    for task in engine.queries.tasks(TaskFilter(status=Status.QUEUED), limit=50).tasks:
        engine.cancel(task.task_id)
    ended = server.call("ZRANGE", engine.keys.finished(), 0, -1)
    server.call("ZADD", engine.keys.finished(), *[part for member in ended for part in (1, member)])
    assert engine.broker.upkeep.sweep() == 50
    with running_web(server.safe_url, worker_metrics_port=0) as web:
        assert look(3, web) == 1000
        assert web_scrape(web).sum("dtq_tasks_completed_total", status="cancelled") == 50


RECYCLED = """
import os, sys, time
from dtq.web import multiprocess
made = multiprocess.prepare()
from dtq.web import meters
from prometheus_client import generate_latest
for _ in range(100):
    child = os.fork()
    if child == 0:
        for status in (200, 404):
            for route in range(10):
                meters._requests.labels("GET", f"/r{route}", status).observe(0.01)
        os._exit(0)
    os.waitpid(child, 0)
began = time.monotonic()
text = generate_latest(meters.own_figures()).decode()
took = time.monotonic() - began
one = 'dtq_http_request_duration_seconds_count{method="GET",route="/r0",status="200"}'
print(len(os.listdir(made)), took, *[line.split()[-1] for line in text.splitlines() if line.startswith(one)])
multiprocess.forget(made)
"""


def test_met_01_a_hundred_replaced_processes_leave_the_files_of_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RECYCLED], capture_output=True, text=True, timeout=50, check=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )  # fmt: skip
    files, took, value = done.stdout.split()
    assert value == "100.0"
    assert int(files) <= 6
    assert float(took) < 1.0, "of a slow machine; files of a hundred processes would take many seconds"


def test_figures_of_a_directory_that_is_used_again_begin_anew(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "counter_7.db").write_bytes(b"old")
    (tmp_path / "slot-7").touch()
    (tmp_path / "other").touch()
    script = "from dtq.web import multiprocess as m; print(m.prepare()); print(m.slot())"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.split() == ["None", "0"]
    assert Counter(path.name for path in tmp_path.iterdir()) == Counter(["other", "slot-0"])


def test_a_file_that_a_killed_process_left_empty_spoils_no_figures(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "counter_0.db").touch()
    assert list(meters.AllProcesses(CollectorRegistry(), str(tmp_path)).collect()) == []
