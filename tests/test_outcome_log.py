"""What the log says of tasks: a line an outcome, found by its ids, without payloads, and no more than can be read."""

from __future__ import annotations

import json
import logging

import pytest

from dtq.log import configure_logging
from dtq.model import ErrorInfo, Outcome
from dtq.states import Status
from dtq.worker.outcomes import LINES_A_SECOND, OutcomeLog
from dtq.worker.state import Job
from tests.support.workers import LocalWorker, make_claim

SECRET = "s3cr3t-in-the-payload"


def job_with(kind, task_type="echo", **fields):
    job = Job(make_claim(task_type), 0.0)
    job.outcome = Outcome(claim=job.claim, kind=kind, duration_ms=12, **fields)
    return job


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="dtq.worker.outcomes")
    return lambda: [record for record in caplog.records if record.name == "dtq.worker.outcomes"]


@pytest.mark.parametrize(
    ("kind", "status", "level", "words"),
    [
        ("succeed", Status.SUCCEEDED, "INFO", "task succeeded"),
        ("retry", Status.RETRYING, "WARNING", "task failed, next attempt in 1.5 s"),
        ("dead", Status.DEAD_LETTERED, "ERROR", "task failed for good: exhausted"),
        ("dead", Status.FAILED, "ERROR", "task failed for good: exhausted"),
        ("snooze", Status.PENDING, "INFO", "task snoozes for 1.5 s"),
        ("unknown", Status.PENDING, "INFO", "task was put off: no handler here for its type"),
        ("unknown", Status.DEAD_LETTERED, "ERROR", "task failed for good: unknown_task_type"),
        ("succeed", Status.CANCELLED, "INFO", "task was cancelled"),
    ],
)
def test_each_outcome_is_one_line_with_its_ids(lines, kind, status, level, words):
    reason = {"dead": "exhausted", "unknown": "unknown_task_type"}.get(kind, "")
    error = ErrorInfo("ValueError", "no") if kind in ("retry", "dead") else None
    outcome_log = OutcomeLog()
    outcome_log.tell(job_with(kind, delay_ms=1500, reason=reason, error=error), status)
    outcome_log.settle()
    (record,) = lines()
    assert (record.levelname, record.getMessage()) == (level, words)
    assert (record.task_type, record.queue, record.attempt, record.duration_ms) == ("echo", "default", 1, 12)
    assert record.outcome == kind
    assert getattr(record, "error", None) == (None if error is None else "ValueError: no")


def test_a_task_that_is_put_off_again_and_again_is_told_once(lines):
    outcome_log = OutcomeLog()
    for since in (None, 100.0, 100.0):
        job = job_with("unknown")
        job.claim = job.claim._replace(unknown_since=since)
        outcome_log.tell(job, Status.PENDING)
    assert [record.getMessage() for record in lines()] == ["task was put off: no handler here for its type"]


def test_what_is_more_than_can_be_read_is_summed_up_and_failures_never_are(lines):
    now = [100.0]
    outcome_log = OutcomeLog(lambda: now[0])
    outcome_log.settle()
    for number in range(LINES_A_SECOND + 30):
        outcome_log.tell(job_with("succeed", f"t{number % 7}"), Status.SUCCEEDED)
        outcome_log.tell(job_with("retry"), Status.RETRYING)
        outcome_log.settle()
    told = [record.getMessage() for record in lines()]
    assert told.count("task succeeded") == LINES_A_SECOND
    assert sum(message.startswith("task failed") for message in told) == LINES_A_SECOND + 30
    now[0] = 101.0
    outcome_log.settle()
    outcome_log.settle()
    (summary,) = [record.getMessage() for record in lines() if "more outcomes" in record.getMessage()]
    assert summary.startswith("30 more outcomes within a second: 5 t1 succeeded, ")
    assert summary.endswith(", ...")
    outcome_log.tell(job_with("succeed"), Status.SUCCEEDED)
    assert lines()[-1].getMessage() == "task succeeded"


def test_the_records_of_a_handler_carry_its_ids_and_never_its_payload(server, capsys):
    """Those of `ctx.log`, of the module's own logger, and of the outcome; text cannot forge a line."""
    worker = LocalWorker(server.safe_url)
    own = logging.getLogger("somebody.elses")

    @worker.task("talk")
    def talk(payload, ctx):
        ctx.log.info("by the context\n2026-01-01T00:00:00.000Z ERROR forged")
        own.warning("by a library")
        return {"got": payload}

    @worker.task("stumble")
    def stumble(payload, ctx):
        raise ValueError("it is not good")

    from dtq.client import Client
    from dtq.worker.context import current_log_fields

    root = logging.getLogger()
    before = root.handlers[:], root.level
    configure_logging("DEBUG", json=True, fields=current_log_fields)
    try:
        worker.start()
        with Client(server.safe_url) as client:
            ids = [client.submit(name, {"secret": SECRET}, tags=["t"]).task_id for name in ("talk", "stumble")]
            for task_id in ids:
                assert client.wait(task_id, 10).terminal
        worker.stop()
    finally:
        root.handlers[:], level = before[0], before[1]
        root.setLevel(level)
    written = capsys.readouterr().err
    assert SECRET not in written
    records = [json.loads(line) for line in written.splitlines()]
    by_message = {record["message"].partition("\n")[0]: record for record in records}
    for words, task_id in (
        ("by the context", ids[0]),
        ("by a library", ids[0]),
        ("task succeeded", ids[0]),
        ("task failed for good: permanent", ids[1]),
    ):
        record = by_message[words]
        assert record["task_id"] == task_id
        assert record["attempt"] == 1
        assert record["queue"] == "default"
    assert by_message["by a library"]["worker_id"] == "local"
    assert sum(record.get("task_id") == ids[1] for record in records) == 1
    assert "forged" in by_message["by the context"]["message"]
