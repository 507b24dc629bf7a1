"""The API of operators: workers told from afar, and the audit of what was done."""

from __future__ import annotations

import json
from collections.abc import Iterator

import jsonschema
import pytest

from dtq.redisio import Server
from dtq.web.schemas import AuditPageAnswer, CommandAnswer
from tests.support.web import Api, running_api

AT = {"X-Request-ID": "req-1"}


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with running_api(server.safe_url) as api:
        yield api


@pytest.mark.parametrize("command", ["quiet", "stop"])
def test_a_worker_is_told_by_its_id(api: Api, server: Server, command: str) -> None:
    api.register_worker()
    path = f"/api/v1/workers/{api.worker_id}/{command}"
    response = api.http.post(path, json={"reason": "deploy"}, headers=AT)
    assert response.status_code == 202
    assert CommandAnswer.model_validate_json(response.data).command == command
    assert server.call("HGET", api.client.broker.keys.worker(api.worker_id), "command").decode() == command
    assert api.http.post(path).status_code == 202, "to say it twice is no fault"
    (entry,) = api.http.get("/api/v1/audit").json["entries"]
    assert (entry["action"], entry["target"]) == (f"worker.{command}", api.worker_id)


@pytest.mark.parametrize("worker_id", ["nobody", "x" * 151, "a%20b", "%3Cb%3E"])
def test_a_worker_that_there_is_not_is_a_404(api: Api, worker_id: str) -> None:
    response = api.http.post(f"/api/v1/workers/{worker_id}/stop")
    assert (response.status_code, response.json["code"]) == (404, "WORKER_NOT_FOUND")


def test_the_audit_tells_of_every_call_that_changed_something(api: Api) -> None:
    waiting, dead = api.post()["task_id"], api.post(queue="q")["task_id"]
    api.bury(api.claim("q"))
    calls = [
        ("post", "/api/v1/queues/default/pause", {"reason": "one"}),
        ("post", "/api/v1/queues/default/pause", {"reason": "again"}),
        ("post", "/api/v1/queues/default/resume", {"reason": "two"}),
        ("post", f"/api/v1/tasks/{waiting}/cancel", {"reason": "three"}),
        ("post", f"/api/v1/dlq/{dead}/requeue", {"reason": "four", "priority": 9}),
    ]
    for method, path, body in calls:
        assert getattr(api.http, method)(path, json=body, headers=AT).status_code in (200, 202), path
    api.bury(api.claim("q"))
    discarded = api.http.delete(f"/api/v1/dlq/{dead}", json={"reason": "five"}, headers=AT)
    assert (discarded.status_code, discarded.json["discarded"]) == (200, True)
    assert api.http.delete(f"/api/v1/dlq/{dead}").json["code"] == "WRONG_STATE"
    assert api.http.delete(f"/api/v1/dlq/{'0' * 32}").json["code"] == "TASK_NOT_FOUND"
    response = api.http.get("/api/v1/audit")
    page = AuditPageAnswer.model_validate_json(response.data)
    assert [(one.action, one.target, one.reason) for one in page.entries] == [
        ("task.discard", dead, "five"),
        ("task.requeue", dead, "four"),
        ("task.cancel", waiting, "three"),
        ("queue.resume", "default", "two"),
        ("queue.pause", "default", "one"),
    ]
    assert {one.request_id for one in page.entries} == {"req-1"}
    assert all(one.actor.startswith("api:") for one in page.entries)
    first = api.http.get("/api/v1/audit", query_string={"limit": 2}).json
    second = api.http.get("/api/v1/audit", query_string={"limit": 200, "cursor": first["next_cursor"]}).json
    assert first["entries"] + second["entries"] == response.json["entries"]
    assert second["next_cursor"] is None
    for name, value in (("action", "queue.pause"), ("target", dead), ("until", page.entries[-1].time.isoformat())):
        found = api.http.get("/api/v1/audit", query_string={name: value}).json["entries"]
        assert 0 < len(found) < 5, name


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 201}, {"cursor": "x"}, {"since": "yesterday"}, {"who": "me"}, {"actor": ""}]
)
def test_a_question_that_is_none_is_a_400_that_names_it(api: Api, query: dict[str, str]) -> None:
    response = api.http.get("/api/v1/audit", query_string=query)
    assert response.status_code == 400
    assert response.json["errors"][0]["pointer"] == f"/{next(iter(query))}"


def test_answers_are_as_the_description_says(api: Api) -> None:
    document = api.http.get("/api/v1/openapi.json").json
    api.http.post("/api/v1/queues/default/pause")
    schema = document["paths"]["/api/v1/audit"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(
        json.loads(api.http.get("/api/v1/audit").data), {**schema, "components": document["components"]}
    )
