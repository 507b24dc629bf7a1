"""The description of the API (OpenAPI 3.1), made from the models that validate: it cannot say what is not so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from http import HTTPStatus
from typing import Any

from flask import Blueprint, Flask, Response, current_app
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from werkzeug.routing import Rule

from dtq import __version__
from dtq.strictjson import dump_json
from dtq.submission import SubmissionLimits
from dtq.web.operation import Operation, operation, told_of
from dtq.web.schemas import Description, Problem

bp = Blueprint("openapi", __name__)

_REF = "#/components/schemas/{model}"
_SINGULAR = "/api/v1/queue/"  # answers too, and is not told twice
_REQUEST_HEADERS: dict[str, dict[str, Any]] = {
    "Idempotency-Key": {
        "description": "Bare, or as a quoted string (RFC 9651): both are the same key. Wins over one given otherwise.",
        "schema": {
            "type": "string",
            "maxLength": 255,
            "pattern": r'^(?:"(?:[ !#-\[\]-~]|\\["\\])+"|[!#-~](?:[ -~]*[!-~])?)$',
        },
    },
    "traceparent": {
        "description": "W3C trace context: kept with the task, for its handler. What is none is passed over.",
        "schema": {"type": "string"},
    },
    "tracestate": {
        "description": "W3C trace context, beside `traceparent`; passed over beyond 512 characters.",
        "schema": {"type": "string"},
    },
}
_ANSWER_HEADERS: dict[str, dict[str, Any]] = {
    "X-Request-ID": {
        "description": "The caller's, where that is 1 to 64 of A-Z a-z 0-9 _ . : @ / + = -, else one of the server's.",
        "required": True,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9_.:@/+=-]{1,64}$"},
    },
    "Location": {"description": "The path of the task.", "required": True, "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds.", "required": True, "schema": {"type": "string", "pattern": "^[0-9]+$"}},
    "WWW-Authenticate": {"description": "ApiKey.", "required": True, "schema": {"type": "string"}},
}
_PROBLEM_HEADERS = {401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}
_KEY_NOTE = {
    "nothing": "",
    "read": "Needs an API key with DTQ_PROTECT=all.",
    "write": "Needs an API key with DTQ_PROTECT=writes or all.",
    "destructive": "Needs an API key where one is set.",
}


@bp.get("/api/v1/openapi.json")
@operation(Operation(need="nothing", tag="description", answers={200: Description}))
def description() -> Response:
    """Describe the API."""
    app = current_app._get_current_object()  # type: ignore[attr-defined]  # a cache must not keep the proxy
    return Response(_document_json(app), content_type="application/json")


@cache
def _document_json(app: Flask) -> bytes:
    return dump_json(document(app))


def document(app: Flask) -> dict[str, Any]:
    """Return the OpenAPI document of an app's views that are operations."""
    found = list(_operations(app))
    models = {Problem} | {model for _, told, _ in found for model in _models(told)}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, shared = models_json_schema([(model, "validation") for model in ordered], ref_template=_REF)
    _tell_limits(shared["$defs"], app.extensions["dtq"].limits)
    paths: dict[str, dict[str, Any]] = {}
    for rule, told, summary in found:
        path = re.sub(r"<(?:[^:>]+:)?([^>]+)>", r"{\1}", rule.rule)
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            paths.setdefault(path, {})[method.lower()] = _operation(rule, told, summary)
    return {
        "openapi": "3.1.0",
        "info": {"title": "dtq", "version": __version__, "summary": "A distributed task queue on Redis Streams"},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": shared["$defs"],
            "headers": _ANSWER_HEADERS,
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}},
        },
    }


def _tell_limits(schemas: dict[str, Any], limits: SubmissionLimits) -> None:
    """Put in what this deployment allows."""
    attempts = schemas["Submission"]["properties"]["max_attempts"]
    attempts["anyOf"][0]["maximum"] = limits.max_attempts
    attempts["description"] = attempts["description"].replace("DTQ_MAX_ATTEMPTS", str(limits.max_attempts))


def _operations(app: Flask) -> Iterator[tuple[Rule, Operation, str]]:
    for rule in app.url_map.iter_rules():
        told = told_of(app.view_functions[rule.endpoint])
        if told is not None and not rule.rule.startswith(_SINGULAR):
            yield rule, *told


def _models(told: Operation) -> Iterator[type[BaseModel]]:
    yield from told.answers.values()
    if told.body is not None:
        yield told.body


def _operation(rule: Rule, told: Operation, summary: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": rule.endpoint.replace(".", "_"),
        "summary": summary,
        "tags": [told.tag],
        "parameters": [*_path_parameters(rule), *_query_parameters(told), *_header_parameters(told)],
        "responses": {
            **{
                str(status): {
                    "description": HTTPStatus(status).phrase,
                    "headers": _headers(*told.answer_headers.get(status, ())),
                    "content": _content(model),
                }
                for status, model in told.answers.items()
            },
            **{str(status): _problem(status) for status in _problems(told)},
        },
    }
    if told.need != "nothing":
        described["description"] = _KEY_NOTE[told.need]
        described["security"] = [{}, {"key": []}]
    if told.body is not None:
        described["requestBody"] = {"required": told.body_required, "content": _content(told.body)}
    if told.raw_body:
        described["requestBody"] = {"required": False, "content": {"application/octet-stream": {}}}
    return described


def _problems(told: Operation) -> list[int]:
    statuses = {*told.problems, 500}
    if told.need != "nothing":
        statuses |= {400, 401, 403, 429, 503}
    if told.body is not None:
        statuses |= {413, 415}
    if told.raw_body:
        statuses.add(413)
    return sorted(statuses)


def _problem(status: int) -> dict[str, Any]:
    schema = {"$ref": _REF.format(model=Problem.__name__)}
    return {
        "description": HTTPStatus(status).phrase,
        "headers": _headers(*_PROBLEM_HEADERS.get(status, ())),
        "content": {"application/problem+json": {"schema": schema}},
    }


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-ID", *names)}


def _content(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}


def _path_parameters(rule: Rule) -> Iterator[dict[str, Any]]:
    for name in sorted(rule.arguments):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameters(told: Operation) -> Iterator[dict[str, Any]]:
    if told.query is None:
        return
    schema = told.query.model_json_schema()
    for name, told_schema in schema["properties"].items():
        whole = _inlined(told_schema, schema.get("$defs", {}))
        yield {"name": name, "in": "query", "required": False, "schema": _without_null(whole)}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is left out; it cannot be null."""
    kinds = [kind for kind in schema.pop("anyOf", ()) if kind != {"type": "null"}]
    if schema.get("default", 0) is None:
        del schema["default"]
    return {**schema, **kinds[0]} if len(kinds) == 1 else {**schema, **({"anyOf": kinds} if kinds else {})}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """Put what a parameter's schema refers to in its place: it has no components of its own."""
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(value, definitions) for name, value in schema.items()}


def _header_parameters(told: Operation) -> Iterator[dict[str, Any]]:
    for name in told.headers:
        yield {"name": name, "in": "header", "required": False, **_REQUEST_HEADERS[name]}
