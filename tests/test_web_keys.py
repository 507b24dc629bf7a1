"""Who may call what: every route with every role, wrong keys, and what other sites' pages send."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtq.apikeys import create_key
from dtq.errors import ConfigurationError, TooManyFailures
from dtq.settings import load_settings
from dtq.web import failures
from dtq.web.application import create_app
from dtq.web.failures import FailureLimit
from dtq.web.schemas import Problem
from tests.support.web import Api, running_api

ROLES = ("read", "submit", "admin")
OPEN = {"/", "/health", "/ready", "/metrics", "/api/v1/openapi.json"}
SUBMITTING = {"/api/v1/tasks", "/api/v1/tasks/batch", "/api/v1/mq/<queue>/<topic>"}
SAMPLES = {"task_id": "0" * 32, "queue": "default", "worker_id": "w1"}
PAUSE = "/api/v1/queues/default/pause"


def fresh() -> str:
    """The address of an empty server."""
    return f"memory://{uuid.uuid4().hex}"


def code(response: Any) -> tuple[int, str]:
    """Check that a response is a problem document, and return its status and code."""
    assert response.content_type == "application/problem+json", response.text
    Problem.model_validate_json(response.data)
    return response.status_code, response.json["code"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    path = tmp_path_factory.mktemp("keys") / "keys"
    return path, {role: create_key(path, f"the-{role}", role) for role in ROLES}  # type: ignore[arg-type]


@pytest.fixture
def api(keys: tuple[Path, dict[str, str]]) -> Iterator[Api]:
    """Everything needs a key of the file."""
    with running_api(fresh(), api_keys_file=str(keys[0]), protect="all") as api:
        yield api


def routes(api: Api) -> Iterator[tuple[str, str, str]]:
    """Method, path, and the least role, by what the contract says and not by what the views say of themselves."""
    for rule in api.app.url_map.iter_rules():
        if rule.rule in OPEN or not rule.rule.startswith("/api/"):
            continue
        path = re.sub(r"<(?:\w+:)?(\w+)>", lambda name: SAMPLES.get(name[1], "x"), rule.rule)
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            least = "read" if method == "GET" else "submit" if rule.rule in SUBMITTING else "admin"
            yield method, path, least


def test_every_route_of_the_api_with_every_role(api: Api, keys: tuple[Path, dict[str, str]]) -> None:
    tried = 0
    for method, path, least in routes(api):
        assert code(api.http.open(path, method=method)) == (401, "API_KEY_MISSING"), path
        for role, key in keys[1].items():
            response = api.http.open(path, method=method, headers={"X-API-Key": key})
            if ROLES.index(role) >= ROLES.index(least):
                assert response.status_code not in (401, 403), (method, path, role)
            else:
                assert code(response) == (403, "ROLE_TOO_SMALL"), (method, path, role)
                assert (response.json["role"], response.json["needed"]) == (role, least)
            tried += 1
    assert tried >= 39
    for path in OPEN - {"/metrics"}:
        assert api.http.get(path).status_code == 200


@pytest.mark.parametrize(("protect", "closed"), [("destructive", {"admin"}), ("writes", {"admin", "submit"})])
def test_what_is_not_protected_needs_no_key_and_no_role(protect: str, closed: set[str]) -> None:
    with running_api(fresh(), api_key="s3cret", protect=protect) as api:
        for method, path, least in routes(api):
            missing = api.http.open(path, method=method)
            if least in closed:
                assert code(missing) == (401, "API_KEY_MISSING"), path
                assert missing.headers["WWW-Authenticate"] == "ApiKey"
            else:
                assert missing.status_code not in (401, 403), path
            right = api.http.open(path, method=method, headers={"X-API-Key": "s3cret"})
            assert right.status_code not in (401, 403), path


def test_without_keys_nothing_is_asked() -> None:
    with running_api(fresh()) as api:
        for method, path, _ in routes(api):
            assert api.http.open(path, method=method).status_code not in (401, 403), path


@pytest.mark.parametrize("offered", ["", "s3cre", "s3cret ", "S3CRET", "ü", "\xff"])
def test_only_the_key_itself_is_the_key(offered: str) -> None:
    with running_api(fresh(), api_key="s3cret") as api:
        response = api.http.post(PAUSE, headers={"X-API-Key": offered})
        assert code(response) == (403, "API_KEY_WRONG")
        assert api.client.queries.queue("default").paused is None


def test_the_audit_names_the_key_or_the_address(api: Api, keys: tuple[Path, dict[str, str]]) -> None:
    assert api.http.post(PAUSE, headers={"X-API-Key": keys[1]["admin"]}).status_code == 200
    assert api.client.queries.queue("default").paused["by"] == "key:the-admin"  # type: ignore[index]
    for options, who in (({"api_key": "s3cret"}, "key:default"), ({}, "api:127.0.0.1")):
        with running_api(fresh(), **options) as other:
            other.http.post(PAUSE, headers={"X-API-Key": "s3cret"})
            assert other.client.queries.queue("default").paused["by"] == who  # type: ignore[index]


def test_a_file_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("nonsense")
    settings = load_settings(env_file=None, redis_url="memory://", api_keys_file=str(tmp_path / "keys"))
    with pytest.raises(ConfigurationError, match="line 1"):
        create_app(settings)


# --- many wrong keys --------------------------------------------------------------------------------------------------


def test_after_ten_wrong_keys_an_address_has_to_wait_even_with_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(failures.time, "monotonic", lambda: now[0])
    with running_api(fresh(), api_key="s3cret", trusted_proxies=1) as api:

        def pause(key: str, address: str) -> Any:
            return api.http.post(PAUSE, headers={"X-API-Key": key, "X-Forwarded-For": address})

        for n in range(10):
            assert code(pause(f"wrong{n}", "192.0.2.1")) == (403, "API_KEY_WRONG")
        for key in ("wrong", "s3cret"):
            refused = pause(key, "192.0.2.1")
            assert code(refused) == (429, "TOO_MANY_FAILURES")
            assert 1 <= int(refused.headers["Retry-After"]) <= 3
        assert pause("s3cret", "192.0.2.2").status_code == 200
        now[0] += 2.1
        assert pause("s3cret", "192.0.2.1").status_code == 200
        assert code(pause("wrong", "192.0.2.1")) == (403, "API_KEY_WRONG")
        assert code(pause("s3cret", "192.0.2.1")) == (429, "TOO_MANY_FAILURES")
        now[0] += 100
        for _ in range(10):
            assert pause("wrong", "192.0.2.1").status_code == 403


def test_the_addresses_that_failed_are_bounded_and_a_network_of_version_6_is_one() -> None:
    limit = FailureLimit(max_addresses=100)
    for n in range(1_000):
        limit.failed(f"10.0.{n // 256}.{n % 256}")
    assert len(limit) == 100
    for n in range(10):
        limit.failed(f"2001:db8::{n}")
    with pytest.raises(TooManyFailures):
        limit.check("2001:db8::ffff:1")
    limit.check("2001:db8:0:1::1")
    limit.check("10.0.0.1")


def test_an_address_that_a_client_makes_up_is_not_believed_without_a_proxy() -> None:
    with running_api(fresh(), api_key="s3cret") as api:
        for n in range(11):
            last = api.http.post(PAUSE, headers={"X-API-Key": "wrong", "X-Forwarded-For": f"192.0.2.{n}"})
        assert code(last) == (429, "TOO_MANY_FAILURES")


# --- browsers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:3000"},
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.test"},
        {"Origin": "http://[", "Sec-Fetch-Site": "none"},
    ],
)
def test_dash_07_a_write_from_a_page_of_another_site_is_refused_also_without_keys(headers: dict[str, str]) -> None:
    with running_api(fresh()) as api:
        assert code(api.http.post(PAUSE, headers=headers)) == (403, "CROSS_SITE")
        assert api.client.queries.queue("default").paused is None
        assert api.http.get("/api/v1/queues", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": "http://localhost"},
     {"Origin": "http://LOCALHOST", "Sec-Fetch-Site": "same-origin"}],
)  # fmt: skip
def test_a_write_from_a_page_of_ours_or_from_a_program_is_accepted(headers: dict[str, str]) -> None:
    with running_api(fresh()) as api:
        assert api.http.post(PAUSE, headers=headers).status_code == 200


def test_a_name_that_was_bent_to_this_machine_is_refused_where_no_key_protects() -> None:
    def status(api: Api, host: str) -> int:
        return int(api.http.get("/api/v1/queues", headers={"Host": host}).status_code)

    with running_api(fresh()) as api:
        for host in ("localhost:8000", "127.0.0.1:8000", "[::1]:8000", "dtq.localhost", "LOCALHOST.", "127.8.8.8"):
            assert status(api, host) == 200, host
        for host in ("evil.test", "localhost.evil.test", "10.0.0.1", "[2001:db8::1]:80", "127.0.0.1.evil.test", "x y"):
            assert status(api, host) == 403, host
        assert code(api.http.get("/api/v1/queues", headers={"Host": "evil.test"})) == (403, "FOREIGN_HOST")
        assert api.http.get("/health", headers={"Host": "evil.test"}).status_code == 200
    for options in ({"api_host": "0.0.0.0"}, {"api_key": "s3cret"}, {"trusted_proxies": 1}):
        with running_api(fresh(), **options) as api:
            assert status(api, "queue.example.com") == 200
    with running_api(fresh(), api_host="0.0.0.0", allowed_hosts="Queue.example.com, .internal") as api:
        for host in ("queue.example.com", "queue.example.com:8000", "a.internal"):
            assert status(api, host) == 200, host
        for host in ("example.com", "xqueue.example.com", "internal", "127.0.0.1"):
            assert status(api, host) == 403, host
