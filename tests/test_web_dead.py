"""The API of dead letters, of bulk jobs, and of the purge of a queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dtq.bulk import BulkWish
from dtq.deadletters import DeadFilter
from dtq.model import Actor
from dtq.redisio import Server
from dtq.web import bulk as web_bulk
from dtq.web import bulk_runner
from dtq.web.schemas import BulkAnswer, BulkList, DeadLetterAnswer, DeadLetterPage
from tests.support.dead import seed_dead
from tests.support.engine import Engine
from tests.support.web import Api, running_api

DLQ = "/api/v1/dlq"


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with running_api(server.safe_url) as api:
        yield api


@pytest.fixture
def engine(server: Server) -> Engine:
    return Engine(server)


def code(response: Any) -> tuple[int, str]:
    assert response.content_type == "application/problem+json", response.text
    return response.status_code, response.json["code"]


def done(response: Any, status: int = 200) -> tuple[str, int, int, int, int]:
    assert response.status_code == status, response.text
    job = BulkAnswer.model_validate_json(response.data)
    return job.state, job.total, job.done, job.skipped, job.failed


def test_dead_letters_are_listed_with_filters_and_a_cursor(api: Api, engine: Engine) -> None:
    buried = engine.bury(5, "mail") + engine.bury(1, "other", reason="exhausted")
    page = DeadLetterPage.model_validate_json(api.http.get(DLQ).data)
    assert [one.task_id for one in page.dead_letters] == buried[::-1]
    assert page.next_cursor is None
    first = api.http.get(DLQ, query_string={"limit": 4}).json
    rest = api.http.get(DLQ, query_string={"limit": 4, "cursor": first["next_cursor"]}).json
    assert [one["task_id"] for one in first["dead_letters"] + rest["dead_letters"]] == buried[::-1]
    for query, number in (
        ({"queue": "mail"}, 5),
        ({"reason": "exhausted"}, 1),
        ({"task_type": "echo", "queue": "other"}, 1),
        ({"error_class": "ValueError"}, 6),
        ({"error": "DID NOT"}, 6),
        ({"since": "2099-01-01T00:00:00Z"}, 0),
        ({"until": "2099-01-01T00:00:00+02:00"}, 6),
        ({"until": "0284-01-01T00:00:00Z"}, 0),
        ({"since": "0284-01-01T00:00:00Z"}, 6),
    ):
        assert len(api.http.get(DLQ, query_string=query).json["dead_letters"]) == number, query


def test_one_is_shown_with_its_task(api: Api, engine: Engine) -> None:
    (dead,) = engine.bury(1)
    shown = DeadLetterAnswer.model_validate_json(api.http.get(f"{DLQ}/{dead}").data)
    assert (shown.task_id, shown.task.task_id, shown.task.attempts[0].traceback) == (dead, dead, "Traceback ...")
    assert code(api.http.get(f"{DLQ}/{engine.submit()}")) == (404, "DEAD_LETTER_NOT_FOUND")
    assert code(api.http.get(f"{DLQ}/{'0' * 32}")) == (404, "TASK_NOT_FOUND")
    assert code(api.http.get(f"{DLQ}/{'0x' * 16}")) == (404, "TASK_NOT_FOUND")
    assert code(api.http.get(f"{DLQ}/nonsense")) == (404, "TASK_NOT_FOUND")


@pytest.mark.parametrize("verb", ["requeue", "discard", "purge"])
def test_small_bulk_calls_answer_at_once_with_counts_and_are_safe_to_repeat(
    api: Api, engine: Engine, verb: str
) -> None:
    buried, others = engine.bury(30, "mail"), engine.bury(3, "other")
    body = {"filter": {"queue": "mail", "until": "2099-01-01T00:00:00Z"}, "reason": "over"}
    assert done(api.http.post(f"{DLQ}/{verb}", json=body)) == ("done", 30, 30, 0, 0)
    if verb != "requeue":
        assert done(api.http.post(f"{DLQ}/{verb}", json=body)) == ("done", 0, 0, 0, 0)
        assert api.get(buried[0])["discarded"]
    by_ids = api.http.post(f"{DLQ}/{verb}", json={"task_ids": [buried[0], *others]})
    assert done(by_ids) == ("done", 4, 3, 1, 0)
    rows = api.http.get("/api/v1/audit", query_string={"action": f"dlq.{verb}"}).json["entries"]
    assert [row["count"] for row in rows] == ([3, 30] if verb == "requeue" else [3, 0, 30])
    assert rows[-1]["reason"] == "over"


def test_a_requeue_of_many_may_go_elsewhere(api: Api, engine: Engine) -> None:
    engine.bury(3)
    answer = api.http.post(f"{DLQ}/requeue", json={"filter": {}, "queue": "slow", "priority": 1})
    assert done(answer) == ("done", 3, 3, 0, 0)
    assert (answer.json["to_queue"], answer.json["to_priority"]) == ("slow", 1)
    assert {(claim.queue, claim.priority) for claim in engine.claim("w1", 9, ["slow"])} == {("slow", 1)}


def test_only_a_purge_takes_all_without_saying_so(api: Api, engine: Engine) -> None:
    engine.bury(3)
    for verb in ("requeue", "discard"):
        for body in ({}, {"task_ids": ["0" * 32], "filter": {}}):
            assert code(api.http.post(f"{DLQ}/{verb}", json=body)) == (400, "INVALID_REQUEST")
    assert done(api.http.post(f"{DLQ}/purge")) == ("done", 3, 3, 0, 0)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"task_ids": []}, "/task_ids"),
        ({"task_ids": ["0" * 32, "x"]}, "/task_ids/1"),
        ({"task_ids": ["0" * 32] * 1001}, "/task_ids"),
        ({"filter": []}, "/filter"),
        ({"filter": {"queue": "No"}}, "/filter/queue"),
        ({"filter": {"reason": "bad luck"}}, "/filter/reason"),
        ({"filter": {"since": "yesterday"}}, "/filter/since"),
        ({"filter": {"since": 5}}, "/filter/since"),
        ({"filter": {"a/b": 1}}, "/filter/a~1b"),
        ({"filter": {}, "rate": 0}, "/rate"),
        ({"filter": {}, "rate": "9"}, "/rate"),
        ({"filter": {}, "priority": 10}, "/priority"),
        ({"filter": {}, "dry_run": 1}, "/dry_run"),
        ({"filter": {}, "reason": "x" * 201}, "/reason"),
        ({"filter": {}, "limit": 1}, "/limit"),
    ],
)
def test_a_bulk_call_that_cannot_be_is_a_400_that_names_the_field(api: Api, body: Any, pointer: str) -> None:
    response = api.http.post(f"{DLQ}/requeue", json=body)
    assert code(response) == (400, "INVALID_REQUEST")
    assert response.json["errors"][0]["pointer"] == pointer


def test_a_dry_run_counts_and_shows_five_and_changes_nothing(api: Api, engine: Engine) -> None:
    buried = engine.bury(9)
    engine.submit_many(7, queue="q")
    for verb, body in (("requeue", {"filter": {}}), ("discard", {"task_ids": buried[::-1]}), ("purge", {})):
        answer = api.http.post(f"{DLQ}/{verb}", json={**body, "dry_run": True})
        assert done(answer) == ("preview", 9, 0, 0, 0)
        assert answer.json["bulk_id"] is None
        assert [one["task_id"] for one in answer.json["samples"]] == buried[:-6:-1]
    answer = api.http.post("/api/v1/queues/q/purge", json={"dry_run": True})
    assert done(answer) == ("preview", 7, 0, 0, 0)
    assert {one["queue"] for one in answer.json["samples"]} == {"q"}
    assert len(answer.json["samples"]) == 5
    assert api.http.get("/api/v1/audit").json["entries"] == []
    assert api.http.get("/api/v1/bulk").json == {"jobs": []}
    assert engine.queries.dead_letters.size() == 9


@pytest.mark.parametrize("path", ["/api/v1/queues/default/purge", "/api/v1/queue/default/purge"])
def test_a_queue_is_purged_and_the_count_is_told(api: Api, engine: Engine, path: str) -> None:
    engine.submit_many(12)
    engine.claim("w1", 2)
    engine.submit(delay_seconds=60)
    answer = api.http.post(path, json={"reason": "bad deploy"})
    assert done(answer) == ("done", 11, 11, 0, 0)
    assert (answer.json["queue"], answer.json["reason"]) == ("default", "bad deploy")
    assert api.http.get("/api/v1/audit").json["entries"][0]["target"] == "default"
    assert done(api.http.post(path)) == ("done", 0, 0, 0, 0)
    assert code(api.http.post("/api/v1/queues/No/purge")) == (404, "QUEUE_NOT_FOUND")


def test_what_takes_longer_than_an_answer_goes_on_and_tells_how_far_it_is(
    api: Api, engine: Engine, monkeypatch: pytest.MonkeyPatch, wait_until: Any
) -> None:
    monkeypatch.setattr(web_bulk, "INLINE_S", 0.0)
    seed_dead(engine, 500)
    response = api.http.post(f"{DLQ}/requeue", json={"filter": {"reason": "exhausted"}})
    assert done(response, 202)[:2] == ("running", 250)
    path = response.headers["Location"]
    wait_until(lambda: api.http.get(path).json["state"] == "done", what="the end of the job", timeout_s=20)
    assert done(api.http.get(path)) == ("done", 250, 250, 0, 0)
    listed = BulkList.model_validate_json(api.http.get("/api/v1/bulk").data)
    assert [one.bulk_id for one in listed.jobs] == [path.rpartition("/")[2]]


def test_a_job_with_a_rate_is_answered_at_once_and_can_be_aborted(api: Api, engine: Engine, wait_until: Any) -> None:
    engine.bury(50)
    response = api.http.post(f"{DLQ}/discard", json={"filter": {}, "rate": 10})
    assert done(response, 202)[0] == "running"
    path = response.headers["Location"]
    wait_until(lambda: api.http.get(path).json["done"] >= 2, what="the first of them")
    aborted = api.http.post(f"{path}/abort", json={"reason": "oops"})
    assert aborted.json["state"] == "aborted"
    assert code(api.http.post(f"{path}/abort")) == (409, "BULK_JOB_ENDED")
    assert api.http.get(path).json["done"] < 50
    for bulk_id in ("f" * 32, "nonsense"):
        assert code(api.http.get(f"/api/v1/bulk/{bulk_id}")) == (404, "BULK_JOB_NOT_FOUND")
        assert code(api.http.post(f"/api/v1/bulk/{bulk_id}/abort")) == (404, "BULK_JOB_NOT_FOUND")


def test_a_web_process_takes_up_what_another_has_left(
    server: Server, engine: Engine, monkeypatch: pytest.MonkeyPatch, wait_until: Any
) -> None:
    monkeypatch.setattr(bulk_runner, "LOOK_S", 0.05)
    engine.bury(10)
    job = engine.bulk.begin(BulkWish(action="dlq.discard", wanted=DeadFilter()), Actor("cli:ann"))
    engine.bulk.step(job, "one that was killed", 3)
    with running_api(server.safe_url) as api:
        api.app.extensions["dtq"].bulk.start()
        assert engine.bulk.get(job.bulk_id).held
        server.call("HSET", engine.keys.bulk(job.bulk_id), "lease", 1)
        wait_until(lambda: engine.bulk.get(job.bulk_id).state == "done", what="the rest of the job")
    assert engine.bulk.get(job.bulk_id).done == 10


def test_a_slow_job_does_not_hold_up_a_short_one(
    api: Api, engine: Engine, monkeypatch: pytest.MonkeyPatch, wait_until: Any
) -> None:
    monkeypatch.setattr(bulk_runner, "TURN_S", 0.1)
    monkeypatch.setattr(web_bulk, "INLINE_S", 0.0)
    engine.bury(100, "slow")
    engine.bury(30, "short")
    slow = api.http.post(f"{DLQ}/discard", json={"filter": {"queue": "slow"}, "rate": 4}).headers["Location"]
    short = api.http.post(f"{DLQ}/discard", json={"filter": {"queue": "short"}}).headers["Location"]
    wait_until(lambda: api.http.get(short).json["state"] == "done", what="the short job", timeout_s=15)
    assert api.http.get(slow).json["done"] < 100
    wait_until(lambda: api.http.get(slow).json["done"] >= 2, what="the slow job", timeout_s=15)


def test_too_many_open_jobs_are_a_429(api: Api, engine: Engine) -> None:
    for _ in range(20):
        engine.bulk.begin(BulkWish(action="dlq.discard", wanted=DeadFilter()), Actor("x"))
    response = api.http.post(f"{DLQ}/purge")
    assert code(response) == (429, "TOO_MANY_BULK_JOBS")
    assert int(response.headers["Retry-After"]) >= 1
