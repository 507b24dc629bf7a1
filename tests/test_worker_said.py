"""What happens thousands of times is said in a line or two."""

from __future__ import annotations

import logging

from dtq.worker import said
from dtq.worker.said import Summary

log = logging.getLogger(__name__)


def test_the_first_time_is_said_at_once_and_the_rest_together(caplog, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(said.time, "monotonic", lambda: clock[0])
    summary = Summary(log, "it happened: %d")
    summary.flush()
    for number in range(1000):
        summary.add(1, {"number": number})
    summary.flush()
    clock[0] += said.PAUSE_S
    summary.flush()
    summary.flush()
    assert [(one.getMessage(), one.number) for one in caplog.records] == [
        ("it happened: 1", 0),
        ("it happened: 999", 1),
    ]


def test_what_is_left_at_the_end_is_said(caplog):
    summary = Summary(log, "it happened: %d")
    summary.add(1, {})
    summary.add(2, {})
    summary.flush(now=True)
    summary.flush(now=True)
    assert [one.getMessage() for one in caplog.records] == ["it happened: 1", "it happened: 2"]
