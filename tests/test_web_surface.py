"""What every answer has in common, who may call what, health, operators' calls, and the description of it all."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

import app as app_module
from dtq.errors import ServerStartFailed
from dtq.redisio import Server
from dtq.redisio.urls import hide_passwords
from dtq.settings import load_settings
from dtq.states import Status
from dtq.web.application import create_app
from dtq.web.http import SIBLINGS
from dtq.web.schemas import Problem, QueueAnswer, QueueList, ReadyAnswer, TaskAnswer, WorkerList
from tests.support.servers import ServerProcess
from tests.support.web import Api, running_api


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with running_api(server.safe_url) as api:
        yield api


def code(response: Any) -> tuple[int, str]:
    """Check that a response is a problem document, and return its status and code."""
    assert response.content_type == "application/problem+json", response.text
    assert Problem.model_validate_json(response.data).request_id == response.headers["X-Request-ID"]
    return response.status_code, response.json["code"]


# --- every answer -----------------------------------------------------------------------------------------------------


def test_unknown_paths_and_methods_are_problems_too(api: Api) -> None:
    assert code(api.http.get("/nope")) == (404, "NOT_FOUND")
    assert code(api.http.get("/api/v1/tasks/")) == (404, "NOT_FOUND")
    response = api.http.delete("/api/v1/tasks")
    assert code(response) == (405, "METHOD_NOT_ALLOWED")
    assert {"GET", "POST"} <= set(response.headers["Allow"].split(", "))


def test_what_is_no_id_of_a_task_is_told_so_and_siblings_keep_their_names(api: Api) -> None:
    for path in ("/api/v1/tasks/nonsense", "/api/v1/tasks/nonsense/result", "/api/v1/tasks/12", "/api/v1/dlq/nonsense"):
        response = api.http.get(path)
        assert code(response) == (404, "TASK_NOT_FOUND")
        assert "32 hexadecimal digits" in response.json["message"]
    assert code(api.http.get("/api/v1/tasks/batch")) == (405, "METHOD_NOT_ALLOWED")
    rules = [rule.rule for rule in api.app.url_map.iter_rules()]
    siblings = {rule.split("/")[4] for rule in rules if re.match(r"/api/v1/(tasks|dlq)/[a-z]", rule)}
    assert siblings == set(SIBLINGS)


def test_a_redirect_leads_to_no_other_server_whatever_the_host_header_says() -> None:
    with running_api("memory://redirect", serve="all", api_key="k") as api:  # with keys, any name is accepted
        response = api.http.post("/api//v1/tasks?x=1", headers={"Host": "evil.example"})
        assert (response.status_code, response.headers["Location"]) == (308, "/api/v1/tasks?x=1")


def test_a_surprise_is_logged_in_full_and_told_as_nothing_but_its_id(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(api.client, "get", fail)
    response = api.http.get("/api/v1/tasks/" + "0" * 32)
    assert code(response) == (500, "INTERNAL_ERROR")
    assert "secret" not in response.text
    assert "Traceback" not in response.text
    [record] = [record for record in caplog.records if record.name == "dtq.web.problem"]
    assert record.request_id == response.headers["X-Request-ID"]  # type: ignore[attr-defined]
    assert "secret detail" in logging.Formatter().format(record)


def test_every_answer_has_a_request_id_and_is_not_cached_or_guessed_at(api: Api) -> None:
    seen = set()
    for path in ("/", "/health", "/ready", "/api/v1/tasks", "/nope", "/api/v1/openapi.json"):
        headers = api.http.get(path).headers
        seen.add(headers["X-Request-ID"])
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert len(seen) == 6


@pytest.mark.parametrize("offered", ["abc", "a" * 64, "0198-ab.c:d_e@f/g+h="])
def test_a_request_id_of_the_caller_is_kept_if_it_is_harmless(api: Api, offered: str) -> None:
    assert api.http.get("/nope", headers={"X-Request-ID": offered}).json["request_id"] == offered


@pytest.mark.parametrize("offered", ["", "a" * 65, "a b", "<script>", "ä", "a\tb", '"'])
def test_a_request_id_that_is_not_harmless_is_replaced(api: Api, offered: str) -> None:
    given = api.http.get("/nope", headers={"X-Request-ID": offered}).headers["X-Request-ID"]
    assert re.fullmatch("[0-9a-f]{24}", given)


def test_hostile_paths_and_queries_are_never_repeated_as_anything_but_json(api: Api) -> None:
    for path in ("/x'onmouseover='alert(1)", "/api/v1/tasks?<img src=x>=1", "/api/v1/queues/<img src=x>"):
        response = api.http.get(path)
        assert response.status_code in (400, 404)
        assert response.content_type == "application/problem+json"


# --- Redis away -------------------------------------------------------------------------------------------------------


def test_while_redis_is_away_everything_but_health_answers_503_within_two_seconds() -> None:
    with running_api("redis://:hidden@127.0.0.1:1/0") as api:
        calls = [
            ("get", "/ready", None),
            ("post", "/api/v1/tasks", {"task_type": "e"}),
            ("post", "/api/v1/tasks/batch", {"tasks": [{"task_type": "e"}]}),
            ("get", "/api/v1/tasks", None),
            ("get", "/api/v1/tasks/" + "0" * 32, None),
            ("post", "/api/v1/queues/default/pause", None),
            ("get", "/api/v1/workers", None),
        ]
        for method, path, body in calls:
            started = time.monotonic()
            response = getattr(api.http, method)(path, json=body)
            assert code(response) == (503, "REDIS_UNAVAILABLE"), path
            assert int(response.headers["Retry-After"]) >= 1
            assert time.monotonic() - started < 2
            assert "hidden" not in response.text
        assert api.http.get("/health").json == {"status": "ok"}
        assert code(api.http.post("/api/v1/tasks", json={})) == (400, "INVALID_TASK")


def test_a_server_that_hangs_is_given_up_within_two_seconds(server_factory: Any) -> None:
    process: ServerProcess = server_factory()
    with running_api(process.url) as api:
        api.post()
        process.pause()
        for _ in range(2):
            started = time.monotonic()
            assert code(api.http.post("/api/v1/tasks", json={"task_type": "e"})) == (503, "REDIS_UNAVAILABLE")
            assert time.monotonic() - started < 2
        process.resume()
        assert api.post()["status"] == "queued"


def test_an_embedded_server_that_does_not_start_is_a_503_that_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ServerStartFailed("/some/path: permission denied")

    monkeypatch.setattr("dtq.client.Client.__init__", fail)
    http = create_app(load_settings(env_file=None)).test_client()
    response = http.get("/ready")
    assert code(response) == (503, "REDIS_UNAVAILABLE")
    assert "/some/path" not in response.text
    assert "/some/path" in caplog.text
    monkeypatch.undo()


def test_redis_away_is_logged_now_and_then_not_with_every_request(caplog: pytest.LogCaptureFixture) -> None:
    with running_api("redis://127.0.0.1:1/0") as api:
        for _ in range(5):
            api.http.get("/ready")
    assert len([record for record in caplog.records if record.name == "dtq.web.problem"]) <= 1


# --- health -----------------------------------------------------------------------------------------------------------


def test_ready_tells_which_server_is_in_use_and_what_is_wrong_with_it(api: Api, server: Server) -> None:
    shown = ReadyAnswer.model_validate_json(api.http.get("/ready").data)
    url = hide_passwords(server.safe_url)
    assert shown.redis == {"server": server.kind, "url": url, "eviction_policy": "noeviction"}
    assert [warning for warning in shown.warnings if "no worker" in warning]
    api.register_worker()
    assert api.http.get("/ready").json["warnings"] == []
    server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    [warning] = api.http.get("/ready").json["warnings"]
    assert "allkeys-lru" in warning


def test_redis_18_ready_runs_a_script_even_after_they_were_flushed(api: Api, server: Server) -> None:
    assert api.http.get("/ready").status_code == 200
    server.call("SCRIPT", "FLUSH")
    assert api.http.get("/ready").status_code == 200
    assert api.post()["status"] == "queued"


def test_a_server_that_does_not_tell_its_policy_is_ready(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from dtq.redisio import CommandError

    real = api.client.server.call

    def refuse_info(*args: Any) -> Any:
        if args[0] == "INFO":
            raise CommandError("NOPERM this user has no permissions to run the 'info' command")
        return real(*args)

    monkeypatch.setattr(api.client.server, "call", refuse_info)
    assert api.http.get("/ready").json["redis"]["eviction_policy"] == "unknown"


def test_ready_says_when_all_is_only_in_memory() -> None:
    with running_api("memory://ready") as api:
        assert api.http.get("/ready").json["redis"]["server"] == "memory"


def test_sec_01_the_password_of_redis_is_not_shown(server_factory: Any) -> None:
    process = server_factory(tcp=True, options=("--requirepass", "s3cr/t"))
    with running_api(process.url.replace("redis://", "redis://:s3cr%2Ft@")) as api:
        response = api.http.get("/ready")
        assert response.status_code == 200
        assert "s3cr" not in response.text


def test_the_root_tells_where_things_are(api: Api) -> None:
    response = api.http.get("/")
    assert response.content_type == "text/plain; charset=utf-8"
    assert "/api/v1/openapi.json" in response.text


# --- operators --------------------------------------------------------------------------------------------------------


def test_queues_show_their_counts_and_can_be_paused_and_resumed(api: Api) -> None:
    api.post(queue="mail", priority=7)
    listed = QueueList.model_validate_json(api.http.get("/api/v1/queues").data)
    assert [queue.queue for queue in listed.queues] == ["mail"]
    for path in ("/api/v1/queues/mail", "/api/v1/queue/mail"):
        shown = QueueAnswer.model_validate_json(api.http.get(path).data)
        assert (shown.depth, shown.counts[Status.QUEUED], shown.waiting_by_priority["7"], shown.paused) == (
            1,
            1,
            1,
            False,
        )
        assert api.http.post(f"{path}/pause", json={"reason": "maintenance"}).json == {"queue": "mail", "paused": True}
        assert api.http.get(path).json["pause"]["reason"] == "maintenance"
        assert api.client.broker.claim("w", ["mail"], 1).claims == []
        assert api.http.post(f"{path}/resume").json == {"queue": "mail", "paused": False}
    assert api.claim("mail").priority == 7


def test_a_queue_that_was_never_used_is_empty_and_one_that_cannot_be_is_not_found(api: Api) -> None:
    assert api.http.get("/api/v1/queues/fresh").json["depth"] == 0
    for call in (api.http.get("/api/v1/queues/UPPER"), api.http.post("/api/v1/queues/a b/pause")):
        assert code(call) == (404, "QUEUE_NOT_FOUND")


def test_workers_are_listed(api: Api) -> None:
    assert api.http.get("/api/v1/workers").json == {"workers": []}
    api.register_worker()
    listed = WorkerList.model_validate_json(api.http.get("/api/v1/workers").data)
    assert [(worker.worker_id, worker.task_types) for worker in listed.workers] == [(api.worker_id, ["echo"])]


def test_a_dead_letter_is_queued_again_elsewhere_if_so_asked(api: Api) -> None:
    task_id = api.post()["task_id"]
    path = f"/api/v1/dlq/{task_id}/requeue"
    assert code(api.http.post(path)) == (409, "WRONG_STATE")
    api.bury(api.claim())
    assert code(api.http.post(path, json={"priority": 10})) == (400, "INVALID_REQUEST")
    response = api.http.post(path, json={"queue": "second", "priority": 9})
    assert response.status_code == 202
    task = TaskAnswer.model_validate_json(response.data)
    assert (task.status, task.queue, task.priority, task.attempt, task.requeued) == ("queued", "second", 9, 0, 1)
    assert code(api.http.post("/api/v1/dlq/no-task/requeue")) == (404, "TASK_NOT_FOUND")


# --- the module that gunicorn and flask find --------------------------------------------------------------------------


def test_the_module_app_makes_the_application_once_and_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTQ_REDIS_URL", "memory://module")
    app_module._app.cache_clear()
    assert app_module.app is app_module.app
    assert app_module.app.test_client().get("/health").status_code == 200
    app_module._app.cache_clear()
    with pytest.raises(AttributeError):
        app_module.nothing  # noqa: B018
