"""Single submissions go past Flask: nobody can tell by the answers, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import pytest
from flask import request_started

from dtq.errors import RedisUnavailable
from dtq.redisio import Server
from tests.support.web import Api, running_api

TASKS = "/api/v1/tasks"
THROUGH_FLASK = {"Sec-Fetch-Site": "same-origin"}
"""A browser on this server's own pages: allowed, but for Flask to look at."""

VARYING = ("task_id", "created_at", "available_at", "request_id")


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with running_api(server.safe_url, max_payload_bytes=1_000) as api:
        api.http.get("/api/v1/queues")  # the first request makes the name of the server known
        yield api


class Dispatches:
    """Counts the requests that Flask has seen."""

    def __init__(self, api: Api) -> None:
        self.number = 0
        self._api = api

    def __enter__(self) -> Self:
        request_started.connect(self._count, self._api.app)
        return self

    def __exit__(self, *_: object) -> None:
        request_started.disconnect(self._count, self._api.app)

    def _count(self, sender: object, **_: object) -> None:
        self.number += 1


def send(api: Api, body: bytes, headers: dict[str, str], content_type: str = "application/json") -> Any:
    return api.http.post(TASKS, data=body, content_type=content_type, headers=headers)


def shown(response: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
    """A response without what differs each time."""
    headers = {name: value for name, value in response.headers if name not in ("X-Request-ID", "Location")}
    assert int(headers.pop("Content-Length")) == len(response.data)
    return response.status_code, headers, {name: value for name, value in response.json.items() if name not in VARYING}


def test_an_accepted_task_is_answered_without_flask_as_with_it(api: Api) -> None:
    body = b'{"task_type": "echo", "payload": {"a": [1, 2]}, "priority": 7, "tags": ["x"], "metadata": {"k": "v"}}'
    with Dispatches(api) as seen:
        short = send(api, body, {})
        assert seen.number == 0
        long = send(api, body, THROUGH_FLASK)
        assert seen.number == 1
    assert short.status_code == 202
    assert shown(short) == shown(long)
    assert short.status == long.status
    assert [name for name, _ in short.headers].count("X-Request-ID") == 1
    assert api.get(short.headers["Location"].rsplit("/", 1)[1])["priority"] == 7


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b'{"task_type": "echo", "surplus": 1}', "application/json", 400),
        (b'{"task_type": "echo", "payload": {"t": "' + b"x" * 1_000 + b'"}}', "application/json", 413),
        (b"x" * 200_000, "application/json", 413),
        (b'{"task_type": "echo"}', "text/plain", 415),
    ],
    ids=["json", "field", "payload", "body", "type"],
)
def test_a_refusal_is_the_same_problem_document_either_way(
    api: Api, body: bytes, content_type: str, status: int
) -> None:
    short, long = send(api, body, {}, content_type), send(api, body, THROUGH_FLASK, content_type)
    assert short.status_code == status
    assert shown(short) == shown(long)
    assert short.json["request_id"] == short.headers["X-Request-ID"]


def test_an_idempotency_key_in_the_header_counts_on_the_short_way_too(api: Api) -> None:
    body, key = b'{"task_type": "echo"}', {"Idempotency-Key": '"once"'}
    first = send(api, body, key)
    assert send(api, body, key).status_code == 409
    api.succeed(api.claim())
    replay = send(api, body, key)
    assert (replay.status_code, replay.json["duplicate"]) == (200, True)
    assert replay.headers["Location"] == first.headers["Location"]
    assert shown(replay) == shown(send(api, body, {**key, **THROUGH_FLASK}))
    assert send(api, body, {"Idempotency-Key": '"half'}).status_code == 400


@pytest.mark.parametrize(("error", "status"), [(RedisUnavailable("away"), 503), (RuntimeError("a defect"), 500)])
def test_what_goes_wrong_after_the_body_was_read_is_tried_once_and_answered_as_ever(
    api: Api, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    tried = []

    def fail(submissions: object) -> None:
        tried.append(submissions)
        raise error

    monkeypatch.setattr(api.client, "submit_parsed", fail)
    response = send(api, b'{"task_type": "echo"}', {"X-Request-ID": "mine"})
    assert (response.status_code, len(tried)) == (status, 1)
    assert response.content_type == "application/problem+json"
    assert response.json["request_id"] == "mine"
    assert "a defect" not in response.text


def test_where_writes_need_a_key_none_goes_past_it(server: Server) -> None:
    with running_api(server.safe_url, api_key="s3cret", protect="writes") as api:
        body = b'{"task_type": "echo"}'
        assert send(api, body, {}).status_code == 401
        assert send(api, body, {"X-API-Key": "wrong"}).status_code == 403
        assert send(api, body, {"X-API-Key": "s3cret"}).status_code == 202


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://elsewhere"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil"}]
)
def test_what_a_foreign_page_sends_is_refused(api: Api, headers: dict[str, str]) -> None:
    assert send(api, b'{"task_type": "echo"}', headers).status_code == 403


def test_a_server_of_pages_only_takes_no_submissions(server: Server) -> None:
    with running_api(server.safe_url, serve="dashboard") as api:
        assert send(api, b'{"task_type": "echo"}', {}).status_code == 404
