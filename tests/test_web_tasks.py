"""The API of tasks: submit, replay, look, wait, cancel (contract, sections 3, 10, 11, 16)."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dtq.model import HandlerPolicy
from dtq.redisio import Server
from dtq.web.schemas import BatchAnswer, Problem, ResultAnswer, TaskAnswer, TaskPage
from tests.support.web import Api, running_api

TASKS = "/api/v1/tasks"


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with running_api(server.safe_url) as api:
        yield api


def send(api: Api, body: str | bytes, content_type: str | None = "application/json", **headers: str) -> Any:
    hyphened = {name.replace("_", "-"): value for name, value in headers.items()}
    return api.http.post(TASKS, data=body, content_type=content_type, headers=hyphened)


def problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """Check that a response is the problem that is expected, and return its document."""
    assert (response.status_code, response.content_type) == (status, "application/problem+json"), response.text
    document = dict(response.json)
    Problem.model_validate(document)
    assert (document["status"], document["code"]) == (status, code)
    assert document["request_id"] == response.headers["X-Request-ID"]
    assert document["detail"] == document["message"]
    return document


def test_a_task_is_accepted_with_its_location_and_can_be_looked_at_there(api: Api) -> None:
    response = send(api, '{"task_type": "echo", "payload": {"a": 1}}')
    assert response.status_code == 202
    task = response.json
    TaskAnswer.model_validate_json(response.data)
    assert re.fullmatch("[0-9a-f]{12}7[0-9a-f]{19}", task["task_id"])
    assert (task["status"], task["attempt"], task["payload"], task["duplicate"]) == ("queued", 0, {"a": 1}, False)
    assert response.headers["Location"] == f"{TASKS}/{task['task_id']}"
    shown = api.http.get(response.headers["Location"])
    TaskAnswer.model_validate_json(shown.data)
    assert {**shown.json, "warnings": task["warnings"]} == task


def test_every_field_comes_back_as_it_was_given(api: Api) -> None:
    fields = {
        "queue": "mail", "priority": 9, "max_attempts": 3, "timeout_ms": 1000, "idempotency_key": "k1",
        "metadata": {"ttl_seconds": 60, "who": "ü"}, "tags": ["a", "b"], "payload": {"x": [1, {}]},
    }  # fmt: skip
    task = api.post(**fields, delay_seconds=60)
    assert task["status"] == "pending"
    for shown in (task, api.get(task["task_id"])):
        assert {name: shown[name] for name in fields} == fields
        created, available = (datetime.fromisoformat(shown[name]) for name in ("created_at", "available_at"))
        assert abs((available - created).total_seconds() - 60) < 0.002  # each is rounded to a millisecond


def test_prio_04_only_priorities_from_0_to_9_are_accepted_and_they_come_back_unchanged(api: Api) -> None:
    for priority in (-1, 10, 50, "high", 1.5, True, None):
        document = problem(send(api, json.dumps({"task_type": "e", "priority": priority})), 400, "INVALID_TASK")
        assert document["errors"] == [
            {"pointer": "/priority", "message": "must be an integer from 0 to 9, where 9 is the most urgent"}
        ]
    assert [api.get(api.post(priority=p)["task_id"])["priority"] for p in range(10)] == list(range(10))


def test_pay_04_a_payload_keeps_every_digit_through_delay_failure_dead_letter_and_requeue(api: Api) -> None:
    payload = (
        '{"id":9007199254740993,"big":130775545883395173,"e":[],"o":{},"f":1.0,"u":"\\u0000\\ud83d\\ude00","neg":-0.0,'
        '"huge":18446744073709551617}'
    )
    wanted = json.dumps(json.loads(payload))
    response = send(api, '{"task_type": "echo", "delay_seconds": 0.01, "payload": ' + payload + "}")
    assert json.dumps(response.json["payload"]) == wanted
    time.sleep(0.02)
    api.client.broker.upkeep.promote()
    first = api.claim()
    assert json.dumps(json.loads(first.payload)) == wanted
    api.bury(first)
    task_id = first.task_id
    assert json.dumps(api.get(task_id)["payload"]) == wanted
    assert api.http.post(f"/api/v1/dlq/{task_id}/requeue").status_code == 202
    assert json.dumps(json.loads(api.claim().payload)) == wanted


def test_pay_03_payloads_are_limited_in_bytes_and_large_bodies_are_refused(server: Server) -> None:
    limit = 2_000
    with running_api(server.safe_url, max_payload_bytes=limit) as api:

        def submit(text: str) -> Any:
            return send(api, '{"task_type": "e", "payload": {"t": "' + text + '"}}')

        assert submit("x" * (limit - 8)).status_code == 202
        document = problem(submit("x" * (limit - 7)), 413, "PAYLOAD_TOO_LARGE")
        assert (document["limit"], document["size"]) == (limit, limit + 1)
        assert submit("😀" * 498).status_code == 202  # 1 992 bytes and the 8 around them
        problem(submit("😀" * 499), 413, "PAYLOAD_TOO_LARGE")
        problem(submit("x" * 200_000), 413, "PAYLOAD_TOO_LARGE")


def test_a_body_whose_announced_length_is_too_large_is_not_read(api: Api) -> None:
    class Unreadable:
        def read(self, size: int = -1) -> bytes:
            raise AssertionError("the body was read")

    environ = {"wsgi.input": Unreadable(), "CONTENT_LENGTH": str(10**9)}
    response = api.http.post(TASKS, content_type="application/json", environ_overrides=environ)
    problem(response, 413, "PAYLOAD_TOO_LARGE")


def test_a_body_without_a_length_is_read_up_to_the_limit_and_no_further(api: Api) -> None:
    class Endless:
        given = 0

        def read(self, size: int = -1) -> bytes:
            assert 0 < size <= 65_536
            self.given += size
            return b" " * size

    endless = Endless()
    environ = {"wsgi.input": endless, "wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}
    response = api.http.post(TASKS, content_type="application/json", environ_overrides=environ)
    problem(response, 413, "PAYLOAD_TOO_LARGE")
    assert endless.given <= api.settings.max_payload_bytes + 65_536 + 1


def test_a_body_that_breaks_off_is_the_callers_error(api: Api) -> None:
    class Broken:
        def read(self, size: int = -1) -> bytes:
            raise OSError("gone")

    environ = {"wsgi.input": Broken(), "CONTENT_LENGTH": "10"}
    response = api.http.post(TASKS, content_type="application/json", environ_overrides=environ)
    problem(response, 400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "content_type",
    [None, "", ";", "text/plain", "application/x-www-form-urlencoded", "application/jsonp",
     "multipart/form-data; boundary=x", "application/json; charset=latin-1", "application/json; version=1"],
)  # fmt: skip
def test_another_content_type_is_refused(api: Api, content_type: str | None) -> None:
    problem(send(api, '{"task_type": "e"}', content_type), 415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"]
)
def test_json_is_accepted_however_it_is_spelled(api: Api, content_type: str) -> None:
    assert send(api, '{"task_type": "e"}', content_type).status_code == 202


def test_a_bad_body_is_refused_with_every_field_and_stores_nothing(api: Api) -> None:
    for body in (b"", b"{", b"[]", b'{"task_type": "e", "task_type": "f"}', b"\xff", b"{" * 20_000):
        problem(send(api, body), 400, "INVALID_TASK")
    document = problem(send(api, '{"priority": "5", "nonsense": 1}'), 400, "INVALID_TASK")
    assert {error["pointer"] for error in document["errors"]} == {"/task_type", "/priority", "/nonsense"}
    assert api.http.get(TASKS).json == {"tasks": [], "next_cursor": None, "looked_at": 0}


def test_a_type_that_nobody_knows_is_accepted_with_a_warning_or_refused_if_so_set(api: Api, server: Server) -> None:
    assert len(api.post()["warnings"]) == 2
    api.register_worker()
    with running_api(server.safe_url, reject_unknown_types=True) as strict:
        assert strict.post()["warnings"] == []
        problem(send(strict, '{"task_type": "unheard"}'), 400, "UNKNOWN_TASK_TYPE")


def test_a_payload_is_held_against_the_schema_that_a_live_worker_has_published(server: Server) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    with running_api(server.safe_url) as api:
        api.register_worker({"echo": HandlerPolicy(None, None, schema)})
        assert send(api, '{"task_type": "echo", "payload": {"n": 1}}').status_code == 202
        document = problem(send(api, '{"task_type": "echo", "payload": {"n": "1"}}'), 400, "INVALID_TASK")
        assert [error["pointer"] for error in document["errors"]] == ["/payload/n"]


# --- idempotency ------------------------------------------------------------------------------------------------------


def test_a_key_in_use_is_a_conflict_that_names_the_task_and_later_a_replay(api: Api) -> None:
    task = api.post(idempotency_key="k")
    document = problem(send(api, '{"task_type": "echo", "idempotency_key": "k"}'), 409, "IDEMPOTENCY_IN_PROGRESS")
    assert document["task_id"] == task["task_id"]
    api.succeed(api.claim(), b"42")
    again = send(api, '{"idempotency_key": "k", "task_type": "echo"}')
    assert (again.status_code, again.json["duplicate"], again.json["result"]) == (200, True, 42)
    assert again.json["task_id"] == task["task_id"]


def test_idem_01_the_same_key_with_another_body_is_refused_first(api: Api) -> None:
    api.post(idempotency_key="k", payload={"a": 1, "b": 2})
    for other in ({"payload": {"a": 1, "b": 3}}, {"payload": {"a": 1, "b": 2}, "task_type": "other"}):
        body = json.dumps({"task_type": "echo", "idempotency_key": "k", **other})
        problem(send(api, body), 422, "IDEMPOTENCY_KEY_REUSED")
    same = '{"payload":  {"b": 2, "a": 1}, "idempotency_key": "k", "task_type": "echo", "priority": 5.0}'
    problem(send(api, same), 409, "IDEMPOTENCY_IN_PROGRESS")
    assert send(api, '{"task_type": "other", "idempotency_key": "k", "queue": "elsewhere"}').status_code == 202


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("abc", "abc"),
        ('"abc"', "abc"),
        ('"a\\"b\\\\c"', 'a"b\\c'),
        ('a"b', 'a"b'),
        ("ü".encode().decode("latin-1"), "ü"),
    ],
)
def test_the_key_of_the_header_wins_quoted_or_bare(api: Api, header: str, key: str) -> None:
    response = send(api, '{"task_type": "e", "idempotency_key": "body"}', Idempotency_Key=header)
    assert (response.status_code, response.json["idempotency_key"]) == (202, key)
    again = send(api, json.dumps({"task_type": "e", "idempotency_key": key}))
    problem(again, 409, "IDEMPOTENCY_IN_PROGRESS")


def test_the_quoted_and_the_bare_form_of_a_key_are_the_same_key(api: Api) -> None:
    assert send(api, '{"task_type": "e"}', Idempotency_Key="8e03978e-40d5-43dd-bc93-6894a57f9324").status_code == 202
    for same in ('"8e03978e-40d5-43dd-bc93-6894a57f9324"', ' "8e03978e-40d5-43dd-bc93-6894a57f9324"\t'):
        again = send(api, '{"task_type": "e"}', Idempotency_Key=same)
        problem(again, 409, "IDEMPOTENCY_IN_PROGRESS")
    assert send(api, '{"task_type": "e"}', Idempotency_Key="8e03978e").status_code == 202


@pytest.mark.parametrize(
    "header",
    ["", '"abc', '"a"b"', '"', "x" * 256, '""', "a\tb", "\xff", '"a", "b"', '"a"; p=1', '"a\\b"', '"a\\', '"a\tb"',
     '"' + "ü".encode().decode("latin-1") + '"', '"' + "x" * 256 + '"'],
)  # fmt: skip
def test_a_header_that_is_no_key_is_refused(api: Api, header: str) -> None:
    response = send(api, '{"task_type": "e"}', Idempotency_Key=header)
    assert response.status_code == 400, response.text
    assert response.json["errors"][0]["pointer"] == "/idempotency_key"


def test_idem_02_fifty_clients_with_one_key_create_one_task(api: Api) -> None:
    def submit(_: int) -> Any:
        return api.app.test_client().post(TASKS, json={"task_type": "echo", "idempotency_key": "race"})

    with ThreadPoolExecutor(25) as pool:
        responses = list(pool.map(submit, range(50)))
    assert sorted(response.status_code for response in responses) == [202] + [409] * 49
    assert len({response.json["task_id"] for response in responses}) == 1
    assert len(api.http.get(TASKS).json["tasks"]) == 1


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_full_queue_answers_429_with_the_time_to_wait_and_keeps_no_key(server: Server) -> None:
    with running_api(server.safe_url, max_queue_depth=2) as api:
        api.post()
        api.post()
        response = send(api, '{"task_type": "e", "idempotency_key": "k"}')
        problem(response, 429, "QUEUE_FULL")
        assert 1 <= int(response.headers["Retry-After"]) <= 60
        api.succeed(api.claim())
        assert send(api, '{"task_type": "e", "idempotency_key": "k"}').status_code == 202


def test_back_01_no_more_is_accepted_than_fits_however_many_submit_at_once(server: Server) -> None:
    with running_api(server.safe_url, max_queue_depth=100) as api:

        def submit(n: int) -> int:
            http = api.app.test_client()
            return int(http.post(TASKS, json={"task_type": "echo", "idempotency_key": str(n)}).status_code)

        with ThreadPoolExecutor(16) as pool:
            statuses = list(pool.map(submit, range(300)))
            assert (statuses.count(202), statuses.count(429)) == (100, 200)
            for _ in range(10):
                api.succeed(api.claim())
            refused = [n for n, status in enumerate(statuses) if status == 429][:50]
            assert sorted(pool.map(submit, refused)) == [202] * 10 + [429] * 40
        assert api.http.get("/api/v1/queues/default").json["depth"] == 100


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_answers_each_object_in_its_place(api: Api) -> None:
    tasks = [
        {"task_type": "a", "payload": {"n": 0}},
        {"task_type": "a", "priority": 10},
        5,
        {"task_type": "a", "idempotency_key": "k"},
        {"task_type": "a", "idempotency_key": "k"},
        {"task_type": "a", "payload": {"n": 5}},
    ]
    response = api.http.post(f"{TASKS}/batch", json={"tasks": tasks})
    assert response.status_code == 200
    answer = BatchAnswer.model_validate_json(response.data)
    assert [result.status for result in answer.results] == [202, 400, 400, 202, 409, 202]
    assert [result.problem is not None for result in answer.results] == [
        status >= 400 for status in (202, 400, 400, 202, 409, 202)
    ]
    payloads = [result.task.payload for result in answer.results if result.task]
    assert payloads == [{"n": 0}, {}, {"n": 5}]
    assert response.json["results"][1]["problem"]["errors"][0]["pointer"] == "/priority"
    assert {task["task_id"] for task in api.http.get(TASKS).json["tasks"]} == {
        result.task.task_id for result in answer.results if result.task
    }


def test_a_batch_of_a_thousand_keeps_its_order_and_one_more_is_too_many(api: Api) -> None:
    tasks = [{"task_type": "a", "payload": {"n": n}} for n in range(1_000)]
    results = api.http.post(f"{TASKS}/batch", json={"tasks": tasks}).json["results"]
    assert [result["task"]["payload"]["n"] for result in results] == list(range(1_000))
    claimed = [api.claim() for _ in range(3)]
    assert [json.loads(claim.payload)["n"] for claim in claimed] == [0, 1, 2]
    problem(api.http.post(f"{TASKS}/batch", json={"tasks": [*tasks, tasks[0]]}), 413, "PAYLOAD_TOO_LARGE")


def test_a_batch_may_be_empty_but_not_something_else(api: Api) -> None:
    assert api.http.post(f"{TASKS}/batch", json={"tasks": []}).json == {"results": []}
    problem(api.http.post(f"{TASKS}/batch", json=[]), 400, "INVALID_TASK")
    problem(api.http.post(f"{TASKS}/batch", json={"tasks": [], "x": 1}), 400, "INVALID_TASK")
    headed = api.http.post(f"{TASKS}/batch", json={"tasks": []}, headers={"Idempotency-Key": "k"})
    problem(headed, 400, "INVALID_REQUEST")


# --- looking and waiting ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task_id", ["0" * 32, "x", "0" * 31, "A" * 32, "%00", "..%2f..", "0" * 5000])
def test_a_task_that_is_not_there_is_not_found(api: Api, task_id: str) -> None:
    for path in (f"{TASKS}/{task_id}", f"{TASKS}/{task_id}/result"):
        response = api.http.get(path)
        assert response.status_code == 404
        problem(response, 404, response.json["code"])
    assert api.http.post(f"{TASKS}/{task_id}/cancel").status_code == 404


def test_the_result_is_there_when_the_task_has_ended(api: Api) -> None:
    task_id = api.post()["task_id"]
    before = api.http.get(f"{TASKS}/{task_id}/result")
    assert (before.status_code, before.json["status"], before.json["result_state"]) == (202, "queued", "none")
    api.succeed(api.claim(), b'{"n":1}')
    after = api.http.get(f"{TASKS}/{task_id}/result")
    assert after.status_code == 200
    shown = ResultAnswer.model_validate_json(after.data)
    assert (shown.status, shown.result_state, shown.result) == ("succeeded", "stored", {"n": 1})


def test_waiting_ends_as_soon_as_the_task_has_ended(api: Api) -> None:
    task_id = api.post()["task_id"]
    claim = api.claim()
    timer = threading.Timer(0.3, api.succeed, [claim])
    timer.start()
    started = time.monotonic()
    response = api.http.get(f"{TASKS}/{task_id}?wait=20")
    assert response.json["status"] == "succeeded"
    assert 0.25 < time.monotonic() - started < 3
    timer.join()


def test_waiting_ends_with_the_time_that_was_asked_for(api: Api) -> None:
    task_id = api.post()["task_id"]
    started = time.monotonic()
    assert api.http.get(f"{TASKS}/{task_id}?wait=0.2").json["status"] == "queued"
    assert 0.2 <= time.monotonic() - started < 2


def test_when_too_many_wait_the_next_is_answered_at_once_and_a_stopping_server_lets_all_go(
    server: Server, wait_until: Callable[..., Any]
) -> None:
    with running_api(server.safe_url, web_threads=4, max_websockets=0) as api:
        task_id = api.post()["task_id"]
        shared = api.app.extensions["dtq"]

        def wait() -> int:
            return api.app.test_client().get(f"{TASKS}/{task_id}?wait=30").status_code

        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(wait) for _ in range(2)]
            wait_until(lambda: shared.slots.waiters == 2, what="two requests that wait")
            started = time.monotonic()
            response = api.http.get(f"{TASKS}/{task_id}?wait=30")
            assert (response.status_code, response.headers["Retry-After"]) == (200, "1")
            assert time.monotonic() - started < 2
            shared.stopping.set()
            assert [future.result(timeout=5) for future in waiting] == [200, 200]
        assert shared.slots.waiters == 0


@pytest.mark.parametrize(
    "query", ["wait=31", "wait=-1", "wait=x", "wait=nan", "wait=inf", "wait=", "wait=1&wait=2", "w=1"]
)
def test_a_wait_that_is_none_is_refused(api: Api, query: str) -> None:
    task_id = api.post()["task_id"]
    problem(api.http.get(f"{TASKS}/{task_id}?{query}"), 400, "INVALID_REQUEST")


# --- cancelling -------------------------------------------------------------------------------------------------------


def test_a_waiting_task_is_cancelled_at_once_and_a_finished_one_is_gone(api: Api) -> None:
    for fields in ({}, {"delay_seconds": 60}):
        path = f"{TASKS}/{api.post(**fields)['task_id']}/cancel"
        response = api.http.post(path, json={"reason": "not needed"})
        assert (response.status_code, response.json["status"], response.json["reason"]) == (
            202,
            "cancelled",
            "not needed",
        )
        assert problem(api.http.post(path), 410, "TASK_FINISHED")["task_status"] == "cancelled"


def test_a_running_task_is_asked_to_end(api: Api) -> None:
    task_id = api.post()["task_id"]
    api.claim()
    response = api.http.post(f"{TASKS}/{task_id}/cancel")
    assert response.status_code == 202
    assert (response.json["status"], response.json["cancel_requested"]) == ("running", True)


@pytest.mark.parametrize(
    "body", ["[]", "{", '{"reason": NaN}', '{"reason": 5}', '{"why": "x"}', '{"reason": "' + "x" * 201 + '"}']
)
def test_a_body_of_a_cancel_that_says_something_else_is_refused(api: Api, body: str) -> None:
    path = f"{TASKS}/{api.post()['task_id']}/cancel"
    problem(api.http.post(path, data=body, content_type="application/json"), 400, "INVALID_REQUEST")
    problem(api.http.post(path, data=body, content_type="text/plain"), 415, "UNSUPPORTED_MEDIA_TYPE")


# --- lists ------------------------------------------------------------------------------------------------------------


def test_lists_are_filtered_and_brief(api: Api) -> None:
    first = api.post(queue="a", tags=["red"], task_type="one")
    second = api.post(queue="b", tags=["red", "blue"], task_type="two", delay_seconds=60)

    def ids(query: str) -> list[str]:
        response = api.http.get(f"{TASKS}?{query}")
        assert response.status_code == 200, response.text
        TaskPage.model_validate_json(response.data)
        assert all("payload" not in task for task in response.json["tasks"])
        return [task["task_id"] for task in response.json["tasks"]]

    both = [second["task_id"], first["task_id"]]
    assert ids("") == both
    assert ids("queue=a") == [first["task_id"]]
    assert ids("status=pending") == [second["task_id"]]
    assert ids("task_type=one") == [first["task_id"]]
    assert ids("tag=blue") == [second["task_id"]]
    assert ids("tag=red&queue=b") == [second["task_id"]]
    now = datetime.now(UTC)
    early, late = ((now + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ") for hours in (-1, 1))
    assert ids(f"created_after={early}&created_before={late}") == both
    assert ids(f"created_after={late}") == []
    assert ids("created_before=2020-01-01T00:00:00%2B01:00") == []
    assert ids("created_before=2020-01-01T00:00:00+01:00") == []  # the plus that nobody escapes


def test_pages_follow_each_other_to_the_end(api: Api) -> None:
    wanted = [api.post()["task_id"] for _ in range(7)][::-1]
    found, query = [], "limit=3"
    for _ in range(4):
        page = api.http.get(f"{TASKS}?{query}").json
        assert page is not None
        found += [task["task_id"] for task in page["tasks"]]
        if page["next_cursor"] is None:
            break
        query = f"limit=3&cursor={page['next_cursor']}"
    assert found == wanted


def test_a_query_where_there_is_nothing_to_ask_is_refused(api: Api) -> None:
    for method, path in (("POST", TASKS), ("POST", f"{TASKS}/batch"), ("GET", "/api/v1/queues")):
        response = api.http.open(f"{path}?priority=9", method=method, json={"task_type": "e", "tasks": []})
        assert problem(response, 400, "INVALID_REQUEST")["errors"][0]["pointer"] == "/priority"
    assert api.http.get(TASKS).json["tasks"] == []


def test_a_page_of_a_filter_without_an_index_says_how_far_it_has_looked(api: Api) -> None:
    wanted = api.post(tags=["rare"])["task_id"]
    for _ in range(2):
        api.http.post(f"{TASKS}/batch", json={"tasks": [{"task_type": "a"}] * 700})
    first = api.http.get(f"{TASKS}?tag=rare&limit=1").json
    assert (first["tasks"], first["looked_at"]) == ([], 1_000)
    second = api.http.get(f"{TASKS}?tag=rare&limit=1&cursor={first['next_cursor']}").json
    assert ([task["task_id"] for task in second["tasks"]], second["looked_at"]) == ([wanted], 401)


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "limit=x", "limit=1.5", "status=done", "queue=A", "queue=", "task_type=", "tag=",
     "created_after=yesterday", "created_after=2026-01-01T00:00:00", "created_before=1700000000", "cursor=", "page=2",
     "limit=1&limit=2", "created_after=99999999-01-01T00:00:00Z"],
)  # fmt: skip
def test_a_query_that_makes_no_sense_is_refused_by_name(api: Api, query: str) -> None:
    document = problem(api.http.get(f"{TASKS}?{query}"), 400, "INVALID_REQUEST")
    assert document["message"].startswith((query.partition("=")[0] + ": ", "a parameter is given twice"))
    assert [error["pointer"] for error in document["errors"]] == ["/" + query.partition("=")[0]]


def test_a_query_that_is_not_understood_is_refused_with_the_reason_of_each_clause(api: Api) -> None:
    answer = api.http.get(TASKS, query_string={"q": f"status:ded color:red age>10m tag:{'x' * 80} age:{'9' * 80}"})
    errors = problem(answer, 400, "INVALID_REQUEST")["errors"]
    assert [error["pointer"] for error in errors] == ["/q"] * 3
    assert errors[0]["message"].startswith("status:ded: a status is one of pending, ")
    assert errors[1]["message"].startswith("color:red: there is no such key; there are status, ")
    assert errors[2]["message"].startswith(f"age:{'9' * 60}...: say age>10m")
    assert answer.json["detail"].startswith("q: status:ded: a status is one of")
    answer = api.http.post(f"{TASKS}/cancel", json={"filter": {"q": "status:ded"}})
    (error,) = problem(answer, 400, "INVALID_REQUEST")["errors"]
    assert (error["pointer"], error["message"][:11]) == ("/filter/q", "status:ded:")


def test_a_cursor_from_elsewhere_is_refused(api: Api) -> None:
    for cursor in ("x", "1-", "-1", "1-%00", "x" * 512):
        assert api.http.get(f"{TASKS}?cursor={cursor}").status_code == 400


def test_a_list_says_of_a_result_what_the_task_says(api):
    task_id = api.post(task_type="echo")["task_id"]
    api.succeed(api.claim(), b'{"x":1}')
    (listed,) = api.http.get("/api/v1/tasks").json["tasks"]
    assert listed["result_state"] == api.get(task_id)["result_state"] == "stored"
