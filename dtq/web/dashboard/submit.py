"""Submitting a task by hand: a form for any payload, and, where a worker publishes a schema, one with its fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flask import request
from werkzeug.wrappers import Response as WerkzeugResponse

from dtq.errors import DtqError, InvalidTask, RedisUnavailable, TaskNotFound
from dtq.strictjson import load_json
from dtq.submission import submission_from_object
from dtq.web.dashboard.action import back, sentence
from dtq.web.dashboard.flash import Said
from dtq.web.dashboard.jsontree import MASK, Redactor
from dtq.web.dashboard.page import Asked, Context, bp, html, look, page, prepare
from dtq.web.dashboard.reads import Reads
from dtq.web.engine import engine
from dtq.web.http import checked_task_id
from dtq.web.sessions import allow_page

NUMBERS = ("delay_seconds", "max_attempts", "timeout_ms")
TEXTS = ("idempotency_key",)
DEFAULTS = {"queue": "default", "priority": "5", "payload": "{}"}
_PREFIX = "p."

Kind = Literal["text", "number", "integer", "choice", "switch", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One property of a payload's schema, as a form shows it."""

    name: str
    kind: Kind
    value: str
    required: bool
    told: str = ""
    choices: Sequence[str] = ()
    least: float | None = None
    most: float | None = None


@page("/tasks/new", area="tasks", name="new")
def new(reads: Reads, asked: Asked) -> Context:
    """Show the form, empty, for a type, or with what another task had."""
    allow_page("write")
    given = {name: value for name, value in asked.items() if name in ("task_type", "queue")}
    like = asked.get("like", "")
    if like:
        given |= _like(reads, checked_task_id(like))
    return _form(reads, given, {}, raw="raw" in asked or bool(like), like=like)


@bp.post("/tasks/new")
def submit() -> WerkzeugResponse:
    """Take the form. What is wrong stands beside its field, and nothing that was typed is lost."""
    allow_page("write")
    client, given = engine().client, request.form.to_dict()
    try:
        asked = _asked(given, engine().client.queries.handlers())
        outcome = client.submit_parsed([submission_from_object(asked, engine().limits)])[0]
        if isinstance(outcome, DtqError):
            raise outcome
    except RedisUnavailable:
        raise
    except DtqError as error:
        prepare()
        faults = _faults(error)
        shown = _form(look(), given, faults, raw="payload" in given, like=given.get("like", ""))
        return html("tasks/new.html", error.http_status, **shown)
    said = "It is a duplicate: here is the task that has its key." if outcome.duplicate else "Submitted."
    return back(Said(kind="done", text=" ".join([said, *map(sentence, outcome.warnings)])), f"/tasks/{outcome.task_id}")


def _form(reads: Reads, given: Mapping[str, str], faults: Mapping[str, str], *, raw: bool, like: str) -> Context:
    handlers = reads.client.queries.handlers()
    policy = handlers.get(given.get("task_type", ""))
    fields = None if raw or policy is None or policy.schema is None else _fields(policy.schema, given)
    return {
        "title": "Submit a task",
        "types": sorted(handlers),
        "queues": reads.client.queries.queue_names(),
        "given": {**dict.fromkeys(("task_type", "tags", *NUMBERS, *TEXTS), ""), **DEFAULTS, **given},
        "fields": fields,
        "has_schema": policy is not None and policy.schema is not None,
        "policy": policy,
        "faults": faults,
        "like": like,
        "mask": MASK,
    }


def _like(reads: Reads, task_id: str) -> dict[str, str]:
    """Return what a form takes from a task; what is hidden comes back on submitting."""
    task = reads.client.queries.task(task_id)
    payload, _ = Redactor(engine().settings.redact).redacted(task.payload)
    return {
        "task_type": task.task_type,
        "queue": task.queue,
        "priority": str(task.priority),
        "payload": json.dumps(payload, ensure_ascii=False, indent=2),
        "tags": ", ".join(task.tags),
    }


def _asked(given: Mapping[str, str], handlers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the submission that a form asks for. Raises InvalidTask for what is not JSON or no number."""
    asked: dict[str, Any] = {"task_type": given.get("task_type", "").strip()}
    asked["queue"] = given.get("queue", "").strip() or "default"
    asked["priority"] = _number("priority", given.get("priority", "5"))
    for name in NUMBERS:
        if given.get(name, "").strip():
            asked[name] = _number(name, given[name])
    for name in TEXTS:
        if given.get(name, "").strip():
            asked[name] = given[name].strip()
    tags = [tag.strip() for tag in given.get("tags", "").split(",") if tag.strip()]
    if tags:
        asked["tags"] = tags
    if "payload" in given:
        asked["payload"] = _json("payload", given["payload"] or "{}")
    else:
        policy = handlers.get(asked["task_type"])
        asked["payload"] = _payload((policy.schema if policy else None) or {}, given)
    if given.get("like"):
        asked["payload"] = _with_hidden(asked["payload"], given["like"])
    return asked


def _with_hidden(payload: Any, like: str) -> Any:
    """Put back what the form could not show."""
    try:
        known = engine().client.queries.task(checked_task_id(like)).payload
    except TaskNotFound:
        return payload
    return _unhidden(payload, known, Redactor(engine().settings.redact))


def _unhidden(value: Any, known: Any, hides: Redactor) -> Any:
    if isinstance(value, dict) and isinstance(known, dict):
        return {
            key: known[key] if inner == MASK and hides.hides(key) and key in known else
            _unhidden(inner, known.get(key), hides)
            for key, inner in value.items()
        }  # fmt: skip
    if isinstance(value, list) and isinstance(known, list):
        return [_unhidden(*pair, hides) for pair in zip(value, known, strict=False)] + value[len(known) :]
    return value


# --- the fields of a schema -------------------------------------------------------------------------------------------


def _fields(schema: Mapping[str, Any], given: Mapping[str, str]) -> list[Field]:
    properties, required = schema.get("properties"), schema.get("required", ())
    made = []
    for name, told in properties.items() if isinstance(properties, dict) else ():
        rule = told if isinstance(told, dict) else {}
        default = rule.get("default")
        kind = _kind(rule)
        shown = "" if default is None else default if kind == "text" else json.dumps(default)
        made.append(
            Field(
                name=name,
                kind=kind,
                value=given.get(_PREFIX + name, str(shown)),
                required=name in required,
                told=str(rule.get("description", ""))[:200],
                choices=[one if isinstance(one, str) else json.dumps(one) for one in rule.get("enum", ())],
                least=rule.get("minimum"),
                most=rule.get("maximum"),
            )
        )
    return made


def _kind(rule: Mapping[str, Any]) -> Kind:
    if isinstance(rule.get("enum"), list):
        return "choice"
    kinds: Mapping[str, Kind] = {"string": "text", "number": "number", "integer": "integer", "boolean": "switch"}
    return kinds.get(str(rule.get("type")), "json")


def _payload(schema: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the payload that the fields of a schema make: a field that is left empty is left out."""
    payload: dict[str, Any] = {}
    for field in _fields(schema, given):
        text = given.get(_PREFIX + field.name, "")
        if field.kind == "switch":
            payload[field.name] = text == "true"
        elif text == "":
            continue
        elif field.kind == "text":
            payload[field.name] = text
        elif field.kind == "choice":
            rule = schema["properties"][field.name]
            payload[field.name] = next((one for one in rule["enum"] if text in (one, json.dumps(one))), text)
        else:
            payload[field.name] = _json(_PREFIX + field.name, text)
    return payload


def _json(name: str, text: str) -> Any:
    try:
        return load_json(text.encode(errors="replace"))
    except InvalidTask as error:
        raise _wrong(name, error.message.replace("the body", "it")) from None


def _number(name: str, text: str) -> int | float:
    try:
        value = float(text)
        return int(value) if value == int(value) else value
    except (ValueError, OverflowError):
        raise _wrong(name, "must be a number") from None


def _wrong(name: str, said: str) -> InvalidTask:
    return InvalidTask(f"{name}: {said}", errors=[{"pointer": f"/{name}", "message": said}])


def _faults(error: DtqError) -> dict[str, str]:
    """Return what is wrong by the field beside which it is to stand; "" is the form as a whole."""
    found: dict[str, str] = {}
    for fault in error.context.get("errors", ()):
        name, _, rest = fault["pointer"].lstrip("/").partition("/")
        if name == "payload" and rest:
            found.setdefault(_PREFIX + rest.partition("/")[0], sentence(fault["message"]))
            found.setdefault("payload", sentence(f"{rest}: {fault['message']}"))
        else:
            found.setdefault(name, sentence(fault["message"]))
    return found or {"": sentence(error.message)}
