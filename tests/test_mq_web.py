"""The message queue over HTTP, and what /metrics tells of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from dtq.keys import Keys
from dtq.redisio import Server
from tests.support.dump import namespace_of
from tests.support.scrape import Scrape
from tests.support.web import Api, running_api


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with running_api(server.safe_url) as api:
        yield api


def put(api: Api, path: str = "commands/retry", data: bytes = b"", **options: Any) -> Any:
    return api.http.post(f"/api/v1/mq/{path}", data=data, **options)


def test_a_message_is_stored_and_comes_to_a_subscription(api: Api) -> None:
    stored = put(api, data=b"\x00\xff{not json", content_type="text/plain")
    assert stored.status_code == 201
    assert stored.json["stored"] is True
    with api.client.queue("commands", visibility_timeout_s=7).subscribe(["retry"]) as subscription:
        message = subscription.receive(5)
        assert (message.data, message.key, message.topic) == (b"\x00\xff{not json", stored.json["key"], "retry")
        assert message.acknowledge()
    assert put(api).status_code == 201, "who only puts takes the visibility timeout as it is"


def test_a_key_comes_from_the_header_or_from_the_query_and_is_told_apart_from_a_known_one(api: Api) -> None:
    assert put(api, headers={"Idempotency-Key": "k"}, query_string={"key": "other"}).json["key"] == "k"
    again = put(api, "commands/other", headers={"Idempotency-Key": '"k"'})
    assert (again.status_code, again.json["stored"]) == (200, False)
    assert put(api, query_string={"key": "k"}).status_code == 200
    assert put(api, query_string={"key": "other"}).status_code == 201
    assert len({put(api).json["key"] for _ in range(3)}) == 3


def test_a_full_topic_answers_429_and_a_known_key_before_it_200(api: Api) -> None:
    assert put(api, query_string={"max_size": 1, "key": "k", "delay_seconds": 60}).status_code == 201
    full = put(api, query_string={"max_size": 1})
    assert (full.status_code, full.json["code"]) == (429, "TOPIC_FULL")
    assert int(full.headers["Retry-After"]) >= 1
    assert full.json["topic"] == "retry"
    assert put(api, query_string={"max_size": 1, "key": "k"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "options", "status", "code"),
    [
        ("Commands/retry", {}, 404, "QUEUE_NOT_FOUND"),
        ("commands/re%20try", {}, 404, "TOPIC_NOT_FOUND"),
        ("commands/retry", {"query_string": {"max_size": "-1"}}, 400, "INVALID_REQUEST"),
        ("commands/retry", {"query_string": {"delay_seconds": "soon"}}, 400, "INVALID_REQUEST"),
        ("commands/retry", {"query_string": {"topic": "x"}}, 400, "INVALID_REQUEST"),
        ("commands/retry", {"headers": {"Idempotency-Key": '""'}}, 400, "INVALID_REQUEST"),
        ("commands/retry", {"headers": {"Idempotency-Key": "x" * 256}}, 400, "INVALID_REQUEST"),
        ("commands/retry", {"query_string": {"key": "\u20ac" * 200}}, 400, "INVALID_REQUEST"),
        ("commands/retry", {"data": b"x" * 1_048_577}, 413, "PAYLOAD_TOO_LARGE"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_stored(
    api: Api, path: str, options: dict[str, Any], status: int, code: str
) -> None:
    refused = put(api, path, **{"data": b"", **options})
    assert (refused.status_code, refused.json["code"]) == (status, code)
    assert api.http.get("/api/v1/mq").json == {"queues": []}


def test_a_queue_with_another_schema_or_one_too_many_is_refused(server: Server) -> None:
    with running_api(server.safe_url, max_queues=1) as api:
        assert put(api).status_code == 201
        assert put(api, "second/retry").json["code"] == "TOO_MANY_QUEUES"
        server.call("HSET", Keys(namespace_of(server)).mq_config("commands"), "v", 2)
        assert put(api).json["code"] == "NEWER_SCHEMA"


def test_queues_are_told_as_they_are_described(api: Api) -> None:
    put(api)
    put(api, "commands/later", query_string={"delay_seconds": 60})
    (listed,) = api.http.get("/api/v1/mq").json["queues"]
    shown = api.http.get("/api/v1/mq/commands").json
    assert listed["depth"] == shown["depth"] == 2
    assert [topic["topic"] for topic in shown["topics"]] == ["later", "retry"]
    assert api.http.get("/api/v1/mq/nothing").json["topics"] == []
    assert api.http.get("/api/v1/mq/NOTHING").status_code == 404
    schemas = api.document["components"]["schemas"]
    jsonschema.validate(shown, {**schemas["MessageQueueAnswer"], "components": {"schemas": schemas}})


def test_putting_needs_a_key_where_writing_does(server: Server) -> None:
    with running_api(server.safe_url, api_key="secret", protect="writes") as api:
        assert put(api).status_code == 401
        assert put(api, headers={"X-API-Key": "secret"}).status_code == 201
        assert api.http.get("/api/v1/mq").status_code == 200


def test_a_forked_child_of_a_server_puts_under_a_name_of_its_own(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = api.client.messages
    parent = messages.any("commands")
    assert messages.any("commands") is parent
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert messages.any("commands") is not parent
    for number in range(300):
        messages.any(f"q{number}")
    assert len(messages._kept) <= 256


def test_many_requests_at_once_put_each_its_own(api: Api) -> None:
    threads = [threading.Thread(target=lambda: [put(api) for _ in range(10)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert api.client.messages.queries.stats("commands").depth == 80
    operations = api.client.server.call("KEYS", "*:mq:commands:operation:*")
    assert len(operations) <= 8, "as many records as callers at once"


def test_metrics_tell_of_message_queues_by_queue_and_topic(api: Api) -> None:
    queue = api.client.queue("commands", max_deliveries=1)
    queue.put("a", b"", key="k")
    queue.put("a", b"", key="k")
    queue.put("b", b"", delay_s=60)
    with queue.subscribe(["a"]) as subscription:
        subscription.receive(5).release()
        with pytest.raises(TimeoutError):
            subscription.receive(0.3)
        text = api.http.get("/metrics").text
    figures = Scrape(text)
    where = {"queue": "commands", "topic": "a"}
    assert figures.one("dtq_mq_puts_total", **where, outcome="stored") == 1
    assert figures.one("dtq_mq_puts_total", **where, outcome="duplicate") == 1
    assert figures.one("dtq_mq_released_total", **where) == 1
    assert figures.one("dtq_mq_dead_total", **where) == 1
    assert figures.one("dtq_mq_lost_total", **where) == 0, "told before the first, or increase() would not see it"
    assert figures.one("dtq_mq_depth", queue="commands", topic="b") == 1
    assert figures.one("dtq_mq_delayed", queue="commands", topic="b") == 1
    assert figures.one("dtq_mq_depth", queue="commands", topic="_other") == 1, "the dead topic was never put into"
    assert figures.one("dtq_mq_consumers", queue="commands") == 1
