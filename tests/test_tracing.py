"""The trace of a request reaches the handler, and its spans tell of both where OpenTelemetry is in use."""

from __future__ import annotations

import logging

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dtq import PermanentError, RetryableError, trace
from dtq.client import Client
from dtq.states import Status
from dtq.trace import TraceContext
from tests.support.web import running_api
from tests.support.workers import LocalWorker, Workers

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


@pytest.fixture
def worker(server):
    made = LocalWorker(server.safe_url, retry_base_delay=0.01)
    yield made
    made.stop()


@pytest.fixture
def api(server):
    with running_api(server.safe_url) as made:
        yield made


@pytest.fixture
def spans(monkeypatch):
    """What is exported meanwhile."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(otel, "_TRACER_PROVIDER", provider)
    return exporter.get_finished_spans


def post(api, task_type, **headers):
    answer = api.http.post("/api/v1/tasks", json={"task_type": task_type}, headers=headers)
    assert answer.status_code == 202, answer.text
    return answer.json["task_id"]


@pytest.mark.parametrize(
    ("parent", "state", "expected"),
    [
        (PARENT, None, TraceContext(PARENT)),
        (f" {PARENT} ", "a=1,b=2", TraceContext(PARENT, "a=1,b=2")),
        (f"01-{TRACE_ID}-{SPAN_ID}-01-more", None, TraceContext(PARENT)),
        (PARENT, "x" * 600, TraceContext(PARENT)),
        (PARENT, "a=\n1", TraceContext(PARENT)),
        (f"{PARENT}-more", None, None),
        (f"ff-{TRACE_ID}-{SPAN_ID}-01", None, None),
        (f"00-{'0' * 32}-{SPAN_ID}-01", None, None),
        (f"00-{TRACE_ID}-{'0' * 16}-01", None, None),
        (PARENT.upper(), None, None),
        (f"{PARENT},{PARENT}", None, None),
        ("", "a=1", None),
        (None, None, None),
    ],
)
def test_headers_are_read_as_the_recommendation_says(parent, state, expected):
    assert trace.read(parent, state) == expected


def test_a_trace_goes_from_the_request_to_the_handler_its_log_and_what_it_submits(api, worker, caplog):
    seen = {}

    @worker.task("outer")
    def outer(payload, ctx):
        ctx.log.warning("here")
        seen["outer"] = ctx.trace
        with Client(settings=worker.settings) as client:
            client.submit("inner", {})

    @worker.task("inner")
    def inner(payload, ctx):
        seen["inner"] = ctx.trace

    worker.start()
    caplog.set_level(logging.INFO)
    task_id = post(api, "outer", traceparent=PARENT, tracestate="vendor=1")
    plain = post(api, "inner", traceparent="nonsense")
    assert api.client.wait(task_id, 10).status is Status.SUCCEEDED
    assert api.client.wait(plain, 10).status is Status.SUCCEEDED
    (other,) = [t for t in api.client.tasks().tasks if t.task_id not in (task_id, plain)]
    assert api.client.wait(other.task_id, 10).status is Status.SUCCEEDED
    assert seen == {"outer": TraceContext(PARENT, "vendor=1"), "inner": TraceContext(PARENT, "vendor=1")}
    here = next(record for record in caplog.records if record.getMessage() == "here")
    ended = next(record for record in caplog.records if getattr(record, "outcome", "") and record.task_id == task_id)
    assert here.trace_id == ended.trace_id == TRACE_ID


def test_a_trace_changes_nothing_about_what_is_the_same_task(api):
    body = {"task_type": "echo", "idempotency_key": "k", "tags": ["a"], "metadata": {"m": 1}}
    first = api.http.post("/api/v1/tasks", json=body, headers={"traceparent": PARENT})
    again = api.http.post("/api/v1/tasks", json=body, headers={"traceparent": PARENT.replace("4b", "5b")})
    assert (first.status_code, again.status_code) == (202, 409)
    stored = api.get(first.json["task_id"])
    assert (stored["tags"], stored["metadata"], stored["idempotency_key"]) == (["a"], {"m": 1}, "k")


def test_spans_tell_of_sending_and_of_each_run_in_the_trace_of_the_caller(api, worker, spans):
    @worker.task("flaky", max_attempts=3)
    def flaky(payload, ctx):
        with otel.get_tracer("own").start_as_current_span("inside"):
            if ctx.attempt == 1:
                raise RetryableError("not yet")
        return {"trace": ctx.trace.trace_id}

    @worker.task("bad")
    def bad(payload, ctx):
        raise PermanentError("never")

    worker.start()
    task_id = post(api, "flaky", traceparent=PARENT)
    assert api.client.wait(task_id, 10).result == {"trace": TRACE_ID}
    lone = post(api, "bad")
    assert api.client.wait(lone, 10).status is Status.DEAD_LETTERED
    found = {}
    for span in spans():
        found.setdefault(span.name, []).append(span)
    (sent,) = found["send flaky"]
    assert sent.kind is otel.SpanKind.PRODUCER
    assert (f"{sent.context.trace_id:032x}", f"{sent.parent.span_id:016x}") == (TRACE_ID, SPAN_ID)
    first, second = found["process flaky"]
    for run in (first, second):
        assert run.kind is otel.SpanKind.CONSUMER
        assert (run.context.trace_id, run.parent.span_id) == (sent.context.trace_id, sent.context.span_id)
        assert run.attributes["messaging.message.id"] == task_id
    assert [run.attributes["dtq.attempt"] for run in (first, second)] == [1, 2]
    assert [run.attributes["dtq.outcome"] for run in (first, second)] == ["retry", "succeed"]
    assert first.status.status_code is otel.StatusCode.ERROR
    (event,) = first.events
    assert event.attributes["exception.type"] == "RetryableError"
    assert second.status.status_code is otel.StatusCode.UNSET
    assert {span.parent.span_id for span in found["inside"]} == {first.context.span_id, second.context.span_id}
    (failed,) = found["process bad"]
    assert failed.context.trace_id == found["send bad"][0].context.trace_id
    assert failed.context.trace_id != sent.context.trace_id
    with otel.get_tracer("own").start_as_current_span("outside") as outside:
        api.client.submit_many([{"task_type": "flaky"}] * 3)
    (batch,) = [span for span in spans() if span.name == "send"]
    assert batch.parent.span_id == outside.get_span_context().span_id
    assert batch.attributes["messaging.batch.message_count"] == 3


def test_an_isolated_handler_runs_in_the_trace_too(server, tmp_path):
    (tmp_path / "own_tasks.py").write_text(
        "from dtq import task\n"
        "@task('apart', isolation='process')\n"
        "def apart(payload, ctx):\n"
        "    return {'parent': ctx.trace.parent}\n"
    )
    workers = Workers(server.safe_url, tmp_path)
    workers.spawn(tasks="own_tasks")
    try:
        with Client(server.safe_url) as client, trace.carrying(trace.read(PARENT)):
            task = client.submit("apart")
            assert client.wait(task.task_id, 20).result == {"parent": PARENT}
    finally:
        workers.close()
