"""Whatever is sent: an answer below 500, as JSON, that repeats little of it. Seeded, so a failure can be had again."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from dtq.redisio import Server
from dtq.web.schemas import Problem
from tests.support.web import Api, running_api

TASKS = "/api/v1/tasks"
ROUNDS = 3_000

GOOD: dict[str, Any] = {
    "task_type": "echo", "payload": {"a": [1, 2.5, "x", None, True, {}]}, "queue": "default", "priority": 5,
    "max_attempts": 3, "timeout_ms": 1000, "delay_seconds": 0, "idempotency_key": "k", "metadata": {"ttl_seconds": 9},
    "tags": ["a", "b"], "run_at": "2030-01-01T00:00:00Z",
}  # fmt: skip

ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, -0.0, 10**20, 10**400, 1e308, "", "x" * 300, "\u0000", "\ud800", "😀", "5", "NaN",
    [], {}, [[]], {"": {}}, {"a": {"a": {"a": 1}}}, ["x"] * 50, "<script>", "'; DROP TABLE", "../..", "%s%n", "{{7*7}}",
    "2030-01-01T00:00:00", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+23:59", {"ttl_seconds": -1},
    {"ttl_seconds": 1e308}, {"ttl_seconds": "1"}, {"__proto__": 1}, "a\r\nSet-Cookie: x",
]  # fmt: skip

BREAKS: list[bytes] = [
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\\ud800", b'"', b"{", b"}", b"[", b"]", b",", b":", b"NaN", b"-Infinity",
    b"1e999", b"9" * 5000, b"[" * 2000, b'{"a":' * 2000, b"\\", b"\xef\xbb\xbf", b"//", b"0x1", b"-", b"\n", b"\x1f",
    b"null", b'"task_type":"e",',
]  # fmt: skip


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with running_api(server.safe_url) as api:
        yield api


def mutated(random_: random.Random) -> bytes:
    """A body that is a good one with something odd in it, or a text with something broken in it."""
    fields = {name: value for name, value in GOOD.items() if random_.random() < 0.5}
    fields["task_type"] = "echo"
    for _ in range(random_.randrange(3)):
        fields[random_.choice([*GOOD, "x", "", "Task_type"])] = random_.choice(ODD)
    body = bytearray(json.dumps(fields, ensure_ascii=random_.random() < 0.5).encode(errors="surrogatepass"))
    for _ in range(random_.randrange(3)):
        at = random_.randrange(len(body) + 1)
        body[at : at + random_.randrange(3)] = random_.choice(BREAKS)
    if random_.random() < 0.1:
        del body[random_.randrange(len(body)) :]
    return bytes(body)


def check(response: Any, allowed: set[int], sent: object) -> None:
    assert response.status_code in allowed, (response.status_code, sent, response.text[:500])
    if response.status_code >= 400:
        assert response.content_type == "application/problem+json"
        Problem.model_validate_json(response.data)
        assert len(response.data) < 10_000, sent
        assert "Traceback" not in response.text


def test_no_body_of_a_submission_ends_in_an_error_of_the_server(api: Api) -> None:
    random_ = random.Random(20300131)
    seen = set()
    for _ in range(ROUNDS):
        body = mutated(random_)
        response = api.http.post(TASKS, data=body, content_type="application/json")
        check(response, {200, 202, 400, 409, 413, 422}, body)
        seen.add(response.status_code)
    assert {202, 400} <= seen


def test_no_body_of_a_batch_ends_in_an_error_of_the_server(api: Api) -> None:
    random_ = random.Random(20300201)
    for _ in range(ROUNDS // 5):
        body = b'{"tasks": [' + b", ".join(mutated(random_) for _ in range(random_.randrange(4))) + b"]}"
        response = api.http.post(f"{TASKS}/batch", data=body, content_type="application/json")
        check(response, {200, 400, 413}, body)
        if response.status_code == 200:
            assert all(result["status"] < 500 for result in response.json["results"])


def options(random_: random.Random) -> bytes:
    """A body as the calls of operators take it, with something odd in it."""
    names = ["reason", "queue", "priority", "ids", "filter", "limit", "per_second", "task_type", "dry_run", "x"]
    fields = {name: random_.choice(ODD) for name in random_.sample(names, random_.randrange(4))}
    return json.dumps(fields).encode()


def test_no_path_query_header_or_body_of_any_route_ends_in_an_error_of_the_server(api: Api) -> None:
    """Every route of the API, those that come later too."""
    random_ = random.Random(20300202)
    texts = [str(value) for value in ODD] + ["a" * 3000, "0" * 32, "%", "%zz", "%c3%28", "١٢", "1-1", "queued", "200"]
    texts = [text.replace("\ud800", "?") for text in texts]
    known = [api.post(delay_seconds=delay)["task_id"] for delay in (0, 0, 60)]
    api.claim()
    parameters = ["limit", "cursor", "status", "queue", "tag", "task_type", "created_after", "since", "type", "wait"]
    rules = [rule for rule in api.app.url_map.iter_rules() if rule.rule.startswith("/api/")]
    seen = set()

    def part(match: re.Match[str]) -> str:
        if match[1] == "task_id" and random_.random() < 0.5:
            return random_.choice(known)
        if match[1] == "queue" and random_.random() < 0.5:
            return "default"
        return quote(random_.choice(texts), safe=random_.choice(["", "/%"]))

    for _ in range(ROUNDS * 2 // 3):
        rule = random_.choice(rules)
        path = re.sub(r"<(?:\w+:)?(\w+)>", part, rule.rule)
        name = random_.choice([*parameters, random_.choice(texts)])
        query = {name: random_.choice(texts) if name != "wait" else random_.choice(["-1", "0.01", "x", "1e9", "nan"])}
        header = random_.choice(["Idempotency-Key", "X-Request-ID", "X-API-Key", "Content-Type", "Host", "Origin"])
        headers = {header: "".join(letter for letter in random_.choice(texts) if " " <= letter <= "~")}
        usual = sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})
        odd = ["PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "FOO"]
        response = api.http.open(
            path,
            method=random_.choice(usual * 5 + odd),
            query_string=query if random_.random() < 0.5 else None,
            headers=headers if random_.random() < 0.5 else {},
            data=random_.choice([b"", mutated(random_), options(random_)]),
            content_type=random_.choice(["application/json", "application/json", "text/plain", "application/json; x"]),
        )
        sent = (response.request.method, response.request.url, response.request.headers)
        assert response.status_code < 500, (sent, response.text[:500])
        seen.add(response.status_code)
        if response.status_code >= 400 and response.request.method != "HEAD":
            check(response, {response.status_code}, sent)
    assert {200, 400, 404, 405, 415} <= seen
