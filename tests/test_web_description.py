"""The description of the API: held against the routes, against the models, and against the live server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dtq.redisio import Server
from tests.support import PROJECT
from tests.support.web import Api, running_api
from tests.support.web_server import running_web

SEED = "20300203"


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with running_api(server.safe_url) as api:
        yield api


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_the_description_is_whole(api: Api) -> None:
    document = api.document
    assert document["openapi"] == "3.1.0"
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    parts = {reference.removeprefix("#/components/") for reference in references(document)}
    known = {f"{kind}/{name}" for kind in ("schemas", "headers") for name in document["components"][kind]}
    assert parts <= known
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["summary"] for operation in operations)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))


def test_routes_and_description_tell_of_each_other(api: Api) -> None:
    """Both ways, with methods: whoever adds a route describes it, and nothing is described that is not there."""
    described = {(path, method.upper()) for path, methods in api.document["paths"].items() for method in methods}
    routed = set()
    for rule in api.app.url_map.iter_rules():
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        if path.startswith("/api/v1/queue/"):  # answers too, and is not told twice
            assert path.replace("/queue/", "/queues/") in api.document["paths"]
        elif path.startswith("/api/") or path in ("/health", "/ready"):
            routed |= {(path, method) for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}}
    assert routed == {(path, method) for path, method in described if path != "/metrics"}


def test_every_operation_tells_its_errors_and_their_headers(api: Api) -> None:
    for path, methods in api.document["paths"].items():
        for method, operation in methods.items():
            answers = operation["responses"]
            assert any(status.startswith("2") for status in answers), path
            for status, answer in answers.items():
                assert "X-Request-ID" in answer["headers"], (path, status)
                if status >= "400":
                    assert list(answer["content"]) == ["application/problem+json"], (path, status)
            if "security" in operation:
                assert {"400", "401", "403", "429", "503"} <= set(answers), path
                assert "Retry-After" in answers["429"]["headers"]
            if "requestBody" in operation:
                assert "413" in answers, path
                assert "415" in answers or "application/json" not in operation["requestBody"]["content"], path
            if "{" in path and method != "get":
                assert "404" in answers, path


def test_the_description_of_a_submission_is_the_model_that_validates(api: Api) -> None:
    schema = api.document["components"]["schemas"]["Submission"]
    good = {"task_type": "e", "priority": 9, "run_at": "2030-01-01T00:00:00Z", "tags": ["a"], "max_attempts": None}
    jsonschema.validate(good, schema)
    for bad in (
        {},
        {"task_type": "a b"},
        {"task_type": "e", "x": 1},
        {"task_type": "e", "priority": 10},
        {"task_type": "e", "timeout_ms": 0},
        {"task_type": "e", "max_attempts": 11},
        {"task_type": "e", "run_at": "2030-01-01T00:00:00Z", "delay_seconds": 1},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)


def test_a_task_in_an_answer_has_the_fields_that_are_described(api: Api) -> None:
    schema = api.document["components"]["schemas"]["TaskAnswer"]
    assert set(schema["properties"]) == set(api.post())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_schemathesis_finds_nothing_in_the_whole_description(server: Server, tmp_path: Path) -> None:
    """Over real connections: every operation, good and bad input, each answer held against the description."""
    program = Path(sys.executable).with_name("schemathesis")
    config = PROJECT / "tests" / "support" / "schemathesis.toml"
    with running_web(server.safe_url, web_threads=8) as web:
        url = f"http://127.0.0.1:{web.port}/api/v1/openapi.json"
        ended = subprocess.run(
            [program, "--config-file", config, "run", url, "--seed", SEED, "--max-examples", "4"],
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert re.search(r"Tested: (\d+)", ended.stdout), ended.stdout
        assert "Traceback" not in web.log
