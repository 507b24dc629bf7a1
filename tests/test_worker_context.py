"""What a handler is given beside its payload."""

from __future__ import annotations

import logging
import time

import pytest

from dtq.errors import TaskCancelled
from dtq.worker.context import PROGRESS_INTERVAL_S, TaskContext
from tests.support.workers import make_claim


@pytest.fixture
def sent():
    return []


@pytest.fixture
def context(sent):
    claim = make_claim(attempt=3, queue="mail", extra=b'{"metadata":{"a":1},"idempotency_key":"K","tags":["t"]}')
    return TaskContext(claim, "w1", time.monotonic() + 5, lambda context: sent.append(context.latest))


def test_it_tells_what_the_task_is(context):
    assert (context.task_id, context.task_type, context.queue) == ("0" * 31 + "1", "echo", "mail")
    assert (context.attempt, context.priority, context.worker_id) == (3, 5, "w1")
    assert (context.idempotency_key, context.metadata) == ("K", {"a": 1})
    assert 4 < context.remaining_s <= 5
    assert context.deadline > time.monotonic()


def test_a_task_without_extras_has_no_key_and_no_metadata(sent):
    context = TaskContext(make_claim(), "w1", time.monotonic() - 1, sent.append)
    assert context.idempotency_key is None
    assert context.metadata == {}
    assert context.remaining_s == 0.0


def test_its_logger_carries_the_ids(context, caplog):
    caplog.set_level(logging.INFO)
    context.log.info("half way")
    record = caplog.records[0]
    assert (record.task_id, record.task_type, record.attempt) == (context.task_id, "echo", 3)
    assert record.worker_id == "w1"


def test_a_cancelled_task_can_be_left_at_a_place_of_its_choice(context):
    context.raise_if_cancelled()
    context.cancelled = True
    with pytest.raises(TaskCancelled):
        context.raise_if_cancelled()


def test_progress_is_limited_to_a_few_a_second_and_the_last_one_always_goes(context, sent):
    for step in range(1000):
        context.progress(step / 999, f"step {step}")
    assert sent == [(0.0, "step 0")]
    assert context.pending
    context.send_due_progress(time.monotonic())
    assert len(sent) == 1
    context.send_due_progress(time.monotonic() + PROGRESS_INTERVAL_S)
    assert sent[1:] == [(1.0, "step 999")]
    context.send_progress(time.monotonic())
    assert len(sent) == 2, "nothing new is not sent again"


def test_progress_is_a_number_from_0_to_1(context, sent):
    context.progress(7)
    assert sent == [(1.0, "")]
    with pytest.raises(ValueError, match="0 to 1"):
        context.progress(float("nan"))
    with pytest.raises((TypeError, ValueError)):
        context.progress("much")
