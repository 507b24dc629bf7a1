"""What the end of a handler means: the closed list of retries, delays, results, and what is kept of an error."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
import redis

from dtq.backoff import Backoff
from dtq.errors import PermanentError, RedisUnavailable, RetryableError, Snooze, TaskCancelled, TaskTimeout
from dtq.registry import Handler
from dtq.states import Disposition
from dtq.worker import verdict
from dtq.worker.verdict import Rules
from tests.support.workers import make_claim

RULES = Rules(
    backoff=Backoff(base_s=1.0, max_s=60.0, jitter=0.0), max_attempts=10, result_max_bytes=100, uniform=lambda: 0.5
)
HANDLER = Handler(name="t", fn=print)


def judge(error, handler=HANDLER, claim=None, **options):
    return verdict.raised(claim or make_claim(), handler, error, 12, RULES, **options)


@pytest.mark.parametrize(
    "error",
    [
        RetryableError("again"),
        TaskTimeout(),
        RedisUnavailable("away"),
        redis.ConnectionError("gone"),
        redis.TimeoutError("slow"),
        redis.exceptions.BusyLoadingError("loading"),
    ],
)
def test_retry_01_what_the_contract_lists_is_retried(error):
    assert judge(error).kind == "retry"


@pytest.mark.parametrize(
    "error",
    [
        PermanentError("no"),
        ValueError("odd"),
        PermanentError(),
        TimeoutError("of the system"),
        ConnectionError("of the system"),
        redis.ResponseError("WRONGTYPE"),
        SystemExit(0),
        KeyboardInterrupt(),
        GeneratorExit(),
        RecursionError(),
        MemoryError(),
    ],
)
def test_retry_01_anything_else_fails_at_once(error):
    outcome = judge(error)
    assert (outcome.kind, outcome.reason, outcome.disposition) == ("dead", "permanent", Disposition.FAILED)
    assert outcome.error.error_class.endswith(type(error).__name__)


def test_retry_01_a_handler_can_add_to_the_list_but_not_take_permanent_error_off_it():
    handler = Handler(name="t", fn=print, retry_on=(OSError, PermanentError))
    assert judge(ConnectionResetError(), handler).kind == "retry"
    assert judge(PermanentError("no"), handler).kind == "dead"


def test_retry_01_attempts_end_after_the_limit_and_delays_double():
    claims = [make_claim(max_attempts=4, failures=failures, attempt=failures + 1) for failures in range(4)]
    outcomes = [judge(RetryableError("again"), claim=claim) for claim in claims]
    assert [outcome.kind for outcome in outcomes] == ["retry", "retry", "retry", "dead"]
    assert [outcome.delay_ms for outcome in outcomes[:3]] == [1000, 2000, 4000]
    assert outcomes[3].reason == "exhausted"


def test_retry_01_an_error_can_name_its_own_delay():
    assert judge(RetryableError("again", after_s=30)).delay_ms == 30_000
    assert judge(RetryableError("again", after_s=-5)).delay_ms == 0
    assert judge(RetryableError("again", after_s=1e12)).delay_ms == 31_536_000_000
    assert judge(RetryableError("again", after_s=timedelta(minutes=2))).delay_ms == 120_000


@pytest.mark.parametrize("mistake", [float("nan"), "30", b"", [30]], ids=repr)
def test_a_delay_that_is_no_number_neither_uses_all_attempts_up_at_once_nor_spins(mistake):
    assert judge(RetryableError("again", after_s=mistake)).delay_ms == judge(RetryableError("again")).delay_ms == 1000
    assert judge(Snooze(mistake)).delay_ms == 1000
    assert judge(Snooze(timedelta(minutes=2))).delay_ms == 120_000


def test_sched_01_delays_spread_over_the_jitter_and_keep_their_bounds():
    rules = Rules(backoff=Backoff(base_s=2.0, max_s=60.0, jitter=0.5), max_attempts=10, result_max_bytes=1)
    claim = make_claim(failures=2, attempt=3)
    delays = [verdict.raised(claim, HANDLER, RetryableError("x"), 1, rules).delay_ms / 1000 for _ in range(1000)]
    assert 4 <= min(delays) < 5
    assert 11 < max(delays) <= 12
    buckets = [int(delay * 10) for delay in delays]
    assert max(buckets.count(bucket) for bucket in set(buckets)) <= 50


def test_the_limit_is_the_submissions_else_the_handlers_else_five():
    generous = Handler(name="t", fn=print, max_attempts=50)
    assert verdict.allowed_attempts(make_claim(max_attempts=2), generous, RULES) == 2
    assert verdict.allowed_attempts(make_claim(), Handler(name="t", fn=print, max_attempts=7), RULES) == 7
    assert verdict.allowed_attempts(make_claim(), generous, RULES) == RULES.max_attempts
    assert verdict.allowed_attempts(make_claim(), HANDLER, RULES) == 5
    assert verdict.allowed_attempts(make_claim(), None, RULES) == 5


def test_an_error_that_came_out_of_the_time_limit_is_the_time_limits():
    def interrupted():
        try:
            raise TaskTimeout
        finally:
            raise ValueError("the clean-up failed")

    with pytest.raises(ValueError, match="clean-up") as caught:
        interrupted()
    assert judge(caught.value, timed_out=True).disposition is Disposition.TIMED_OUT
    assert judge(caught.value).kind == "dead"
    assert judge(ValueError("unrelated"), timed_out=True).kind == "dead"


def test_a_snooze_and_a_cancellation_count_as_no_failure():
    snoozed = judge(Snooze(1.5), claim=make_claim(failures=4))
    assert (snoozed.kind, snoozed.delay_ms, snoozed.error) == ("snooze", 1500, None)
    cancelled = judge(TaskCancelled())
    assert (cancelled.kind, cancelled.disposition) == ("cancelled", Disposition.CANCELLED)


def result_of(value):
    return verdict.returned(make_claim(), HANDLER, value, 5, RULES)


def test_a_result_is_kept_as_json_and_none_is_no_result():
    assert result_of(None).result is None
    assert json.loads(result_of({"a": [1, 2.5, "é", None, True]}).result) == {"a": [1, 2.5, "é", None, True]}
    assert result_of(0).result == b"0"


def test_a_result_that_is_too_large_is_said_to_be():
    outcome = result_of("x" * 99)
    assert (outcome.kind, outcome.result, outcome.result_too_large) == ("succeed", None, True)
    assert result_of("x" * 98).result_too_large is False


def deep_result_of(value):
    return verdict.returned(make_claim(), HANDLER, value, 5, replace(RULES, result_max_bytes=10_000_000))


@pytest.mark.parametrize("depth", [101, 950, 5_000, 100_000])
def test_a_result_that_is_nested_too_deeply_is_said_to_be_too_large(depth):
    """Some Python, or some client, would fail to read what another one could write."""
    value = "[[[{{{"
    for _ in range(depth):
        value = [value]
    outcome = deep_result_of(value)
    assert (outcome.kind, outcome.result, outcome.result_too_large) == ("succeed", None, True)


def test_what_looks_like_depth_inside_of_a_string_is_none():
    for value in (["[" * 200] * 3, {'"[': '\\"{' * 150}, [[]] * 300, [[[1]]] * 60):
        assert json.loads(deep_result_of(value).result) == value


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), {"a": b"bytes"}, "\ud800", {(1, 2): 3}])
def test_a_result_that_is_not_json_is_a_permanent_failure(value):
    outcome = result_of(value)
    assert (outcome.kind, outcome.reason) == ("dead", "permanent")
    assert "not JSON" in outcome.error.message


def test_a_result_that_holds_itself_is_a_permanent_failure():
    circle = []
    circle.append(circle)
    assert result_of(circle).kind == "dead"


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Unkind(Exception):
    def __str__(self):
        raise SystemExit


def test_life_11_an_error_without_words_is_recorded_all_the_same():
    for kind in (Unspeakable, Unkind):
        outcome = judge(kind())
        assert outcome.kind == "dead"
        assert kind.__name__ in outcome.error.error_class
        assert "cannot be shown" in outcome.error.message


def test_dlq_02_a_huge_error_is_cut_and_says_so():
    def sink(depth):
        if depth:
            sink(depth - 1)
        raise ValueError("x" * 5_000_000)

    for raise_it in (lambda: sink(0), lambda: sink(300)):
        try:
            raise_it()
        except ValueError as error:
            info = judge(error).error
        assert len(json.dumps(info._asdict())) <= 8192
        assert len(info.message) <= 500
        assert info.message.endswith("(truncated)")
        assert "ValueError" in info.traceback
        assert "in sink" in info.traceback


@pytest.mark.parametrize("text", ["é" * 600, "😀" * 600, "\x00" * 600, '"' * 600, "\ud800" * 600, "\\" * 600])
def test_dlq_02_the_bound_is_one_of_bytes(text):
    try:
        raise ValueError(text)
    except ValueError as error:
        info = judge(error).error
    assert len(json.dumps(info._asdict(), ensure_ascii=False).encode()) <= 8192
    assert len(info.message) <= 500


def test_messages_hold_no_control_characters():
    outcome = judge(ValueError("a\x1b[31mred\x00\r\nnext\u202etxet\udc80"))
    assert outcome.error.message.isprintable()
    outcome.error.traceback.encode()
    assert all(line.isprintable() for line in outcome.error.traceback.split("\n"))


def test_the_traceback_tells_the_chain_of_causes():
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as error:
        text = judge(error).error.traceback
    assert text.index("KeyError") < text.index("led to") < text.index("ValueError: outer")


def test_an_undecodable_payload_and_an_unknown_type_have_their_reasons():
    outcome = verdict.undecodable(make_claim(), HANDLER, ValueError("bad"), RULES)
    assert (outcome.kind, outcome.reason) == ("dead", "undecodable")
    outcome = verdict.unknown(make_claim("nobody.knows"))
    assert (outcome.kind, outcome.reason) == ("unknown", "unknown_task_type")
