"""What a submission may hold, and how a refusal reads (contract, section 3)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dtq.errors import InvalidTask, PayloadTooLarge
from dtq.strictjson import MAX_DEPTH
from dtq.submission import (
    MAX_BATCH,
    Submission,
    SubmissionLimits,
    load_json,
    parse_batch,
    parse_submission,
    submission_from_object,
)

LIMITS = SubmissionLimits()


def parse(text: str | bytes, limits: SubmissionLimits = LIMITS, key: str | None = None) -> Submission:
    return parse_submission(text if isinstance(text, bytes) else text.encode(), limits, key)


def asked(**fields: Any) -> Submission:
    return parse(json.dumps({"task_type": "echo", **fields}))


def pointers(refused: Callable[[], object]) -> list[str]:
    with pytest.raises(InvalidTask) as caught:
        refused()
    return [error["pointer"] for error in caught.value.context["errors"]]


def test_a_task_type_is_enough_and_the_defaults_are_those_of_the_contract() -> None:
    submission = parse('{"task_type": "echo"}')
    assert submission.model_dump() == {
        "task_type": "echo",
        "payload": {},
        "queue": "default",
        "priority": 5,
        "max_attempts": None,
        "timeout_ms": None,
        "delay_seconds": 0.0,
        "run_at": None,
        "idempotency_key": None,
        "metadata": {},
        "tags": [],
    }
    assert (submission.payload_json, submission.extra_json) == (b"{}", b"")
    assert (submission.delay_ms, submission.run_at_ms, submission.ttl_seconds) == (0, None, None)


def test_limits_come_from_the_settings() -> None:
    settings_ = SimpleNamespace(max_payload_bytes=10, max_attempts=3)
    assert SubmissionLimits.from_settings(settings_) == SubmissionLimits(max_payload_bytes=10, max_attempts=3)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("task_type", ["a", "A-Z_0.9:x", "t" * 128]),
        ("queue", ["q", "0", "a-b_c", "q" * 64]),
        ("priority", [0, 9, 5.0, -0.0]),
        ("max_attempts", [1, 10, 3.0, None]),
        ("timeout_ms", [1, 3_600_000, None]),
        ("delay_seconds", [0, 0.001, 31_536_000, 1.5]),
        ("run_at", ["2030-01-31T12:00:00Z", "2030-01-31t12:00:00.123456789z", "2030-01-31 12:00:00-05:30", None]),
        ("idempotency_key", ["k", "ключ 1", "k" * 255, '"', None]),
        ("metadata", [{}, {"ttl_seconds": 0.5}, {"ttl_seconds": 10**30}, {"any": [1, {"thing": None}]}]),
        ("tags", [[], ["a"], ["t" * 64] * 10, ["naïve 😀"]]),
        ("payload", [{}, {"": 0}, {"n": [None, True, "\u0000"]}]),
    ],
)
def test_what_is_allowed_is_accepted(field: str, values: list[Any]) -> None:
    for value in values:
        assert asked(**{field: value}) is not None


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("task_type", ["", "t" * 129, "a b", "a\n", "é", "a/b", "a\u0000", 1, None, ["a"], True]),
        ("queue", ["", "Q", "-a", "_a", "a b", "a\n", "q" * 65, 1, None, "a.b", "é"]),
        ("priority", [-1, 10, 50, "high", "5", 1.5, True, False, None, [], 10**400, 1e300]),
        ("max_attempts", [0, 11, -1, "3", 2.5, True, 10**400]),
        ("timeout_ms", [0, 3_600_001, "30", 0.5, True]),
        ("delay_seconds", [-1, -0.001, 31_536_001, "1", True, None, [], 10**400]),
        ("run_at", ["2030-01-31T12:00:00", "2030-02-31T12:00:00Z", "now", "", "2030-01-31", 1893456000, True,
                    "٢٠٣٠-01-31T12:00:00Z"]),
        ("idempotency_key", ["", "k" * 256, "a\u0000", "a\n", "\u007f", 1, True]),
        ("metadata", [None, [], "x", {"ttl_seconds": 0}, {"ttl_seconds": -1}, {"ttl_seconds": "5"},
                      {"ttl_seconds": True}, {"ttl_seconds": None}, {"a": "x" * 4_096}]),
        ("tags", [None, "a", {}, ["a"] * 11]),
        ("payload", [None, [], "x", 5, True]),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_refused_with_the_name_of_its_field(field: str, values: list[Any]) -> None:
    for value in values:
        assert pointers(partial(asked, **{field: value})) == [f"/{field}"], value


def test_a_bad_tag_is_named_by_its_place() -> None:
    assert pointers(lambda: asked(tags=["good", "", "a\n", 5, "x" * 65])) == [
        "/tags/1",
        "/tags/2",
        "/tags/3",
        "/tags/4",
    ]


def test_prio_04_an_impossible_priority_is_refused_with_the_range_that_is_allowed() -> None:
    for priority in (-1, 10, 50, "high", 1.5, True, None):
        with pytest.raises(InvalidTask, match="an integer from 0 to 9, where 9 is the most urgent"):
            asked(priority=priority)
    assert [asked(priority=priority).priority for priority in range(10)] == list(range(10))


def test_a_whole_float_is_an_integer_because_json_has_one_type_of_number() -> None:
    submission = parse('{"task_type": "echo", "priority": 7.0, "timeout_ms": 5e3}')
    assert (submission.priority, submission.timeout_ms) == (7, 5000)
    assert type(submission.priority) is int
    assert type(submission.timeout_ms) is int


def test_every_bad_field_is_named_at_once() -> None:
    found = pointers(lambda: parse('{"priority": 10, "tags": "x", "surprise": 1, "a/b~c": 2}'))
    assert sorted(found) == ["/a~1b~0c", "/priority", "/surprise", "/tags", "/task_type"]


def test_an_unknown_field_is_told_with_the_one_that_was_probably_meant() -> None:
    for wrong, meant in (("type", "task_type"), ("task_typ", "task_type"), ("delay", "delay_seconds")):
        with pytest.raises(InvalidTask, match=f"^{wrong}: unknown field; did you mean {meant}\\?"):
            parse(json.dumps({wrong: "echo"}))
    with pytest.raises(InvalidTask) as caught:
        parse('{"task_type": "echo", "type": "echo"}')
    assert caught.value.context["errors"] == [{"pointer": "/type", "message": "unknown field"}]


def test_the_limit_of_attempts_is_that_of_the_installation() -> None:
    with pytest.raises(InvalidTask, match="an integer from 1 to 3"):
        parse('{"task_type": "echo", "max_attempts": 4}', SubmissionLimits(max_attempts=3))
    with pytest.raises(InvalidTask, match="an integer from 1 to 3"):
        parse('{"task_type": "echo", "max_attempts": true}', SubmissionLimits(max_attempts=3))


def test_the_payload_is_measured_in_bytes_of_compact_json() -> None:
    limits = SubmissionLimits(max_payload_bytes=20)
    assert len(parse('{"task_type": "e", "payload": {  "a"  : "01234567890" }}', limits).payload_json) == 19
    assert len(parse('{"task_type": "e", "payload": {"a": "\\ud83d\\ude00😀😀"}}', limits).payload_json) == 20
    with pytest.raises(PayloadTooLarge) as caught:
        parse('{"task_type": "e", "payload": {"a": "😀😀😀x"}}', limits)
    assert caught.value.context == {"limit": 20, "size": 21}


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"null", b"[]", b'"x"', b"5", b"{", b"{}}", b"{'a': 1}", b'{"a": 1,}', b'{"a" 1}', b"\x00",
        b'{"a": "\n"}', b'{"a": 01}', b'{"a": .5}', b'{"a": +1}', b'{"a": 0x10}', b"// x\n{}", b"\xff\xfe{\x00}\x00",
        b'\xef\xbb\xbf{"task_type": "echo"}', '{"task_type": "echo"}'.encode("utf-16"), b'{"task_type": "\xe9"}',
        b'{"task_type": "\xed\xa0\x80"}', b"{" * 10_000, b"[" * 1_000_000,
        b'{"task_type": "echo", "payload": {"n": ' + b"9" * 5_000 + b"}}",
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    assert pointers(lambda: parse(body))[0] in ("", "/task_type")


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ('{"task_type": "a", "task_type": "b"}', "/task_type"),
        ('{"task_type": "a", "payload": {"x": [0, {"k": 1, "k": 1}]}}', "/payload/x/1/k"),
        ('{"task_type": "a", "payload": {"x": NaN}}', "/payload/x"),
        ('{"task_type": "a", "payload": {"x": [-Infinity]}}', "/payload/x/0"),
        ('{"task_type": "a", "delay_seconds": Infinity}', "/delay_seconds"),
        ('{"task_type": "a", "payload": {"x": 1e999}}', "/payload/x"),
        ('{"task_type": "a", "payload": {"x": -1e999}}', "/payload/x"),
        ('{"task_type": "a", "payload": {"x": "\\ud800"}}', "/payload/x"),
        ('{"task_type": "a", "payload": {"x": {"\\uDFFF": 1}}}', "/payload/x/\\udfff"),
        ('{"task_type": "a", "tags": ["\\udc00\\ud800"]}', "/tags/0"),
        ('{"task_type": "a", "idempotency_key": "\\ud83d"}', "/idempotency_key"),
        ('{"task_type": "a", "\\ud83d": 1}', "/\\ud83d"),
    ],
)
def test_what_is_json_only_to_some_is_refused_and_located(body: str, where: str) -> None:
    assert pointers(lambda: parse(body)) == [where]


def test_payloads_may_nest_a_hundred_levels_and_no_more_in_every_way_in() -> None:
    def nested(levels: int) -> str:
        return '{"task_type": "e", "payload": {"a": ' + "[" * (levels - 1) + "]" * (levels - 1) + "}}"

    def batch(levels: int) -> object:
        return parse_batch(f'{{"tasks": [{nested(levels)}]}}'.encode(), LIMITS)[0]

    def python(levels: int) -> Submission:
        return submission_from_object(json.loads(nested(levels)), LIMITS)

    for way_in in (lambda levels: parse(nested(levels)), batch, python):
        assert isinstance(way_in(MAX_DEPTH), Submission)
        with pytest.raises(InvalidTask, match="levels"):
            way_in(MAX_DEPTH + 1)
    for levels in (1_000, 10_000, 200_000):
        with pytest.raises(InvalidTask, match="levels"):
            parse(nested(levels))


def test_brackets_side_by_side_or_in_strings_are_not_levels() -> None:
    wide = {"task_type": "e", "payload": {"a": [[]] * 1_000, "b": "[" * 1_000}}
    assert parse(json.dumps(wide)).payload == wide["payload"]


def test_pay_04_the_payload_keeps_its_order_and_every_digit() -> None:
    text = (
        '{"id":9007199254740993,"big":130775545883395173,"e":[],"o":{},"f":1.0,'
        '"u":"\\u0000\\ud83d\\ude00","neg":-0.0,"a":18446744073709551617,"d":1e-7}'
    )
    submission = parse('{"task_type": "echo", "payload": ' + text + "}")
    kept = json.loads(submission.payload_json)
    assert json.dumps(kept) == json.dumps(json.loads(text))
    assert math.copysign(1, kept["neg"]) == -1
    assert type(kept["f"]) is float
    digits = "7" * 4_000
    assert digits.encode() in parse('{"task_type": "echo", "payload": {"n": ' + digits + "}}").payload_json


def test_a_refusal_never_repeats_large_input() -> None:
    big = "x" * 50_000
    for body in (
        {"task_type": big},
        {big: 1},
        {"task_type": "e", "priority": big},
        {"task_type": "e", "tags": [big] * 10},
    ):
        with pytest.raises(InvalidTask) as caught:
            parse(json.dumps(body))
        assert len(caught.value.message) + len(json.dumps(caught.value.context)) < 3_000
    with pytest.raises(InvalidTask) as caught:
        parse(json.dumps({f"field{n}": n for n in range(1_000)}))
    assert len(caught.value.context["errors"]) == 20


def test_delay_and_run_at_exclude_each_other_even_when_the_delay_is_nought() -> None:
    for delay in (0, 5):
        assert pointers(partial(asked, delay_seconds=delay, run_at="2030-01-31T12:00:00Z")) == ["/run_at"]


def test_times_become_milliseconds_that_are_never_early() -> None:
    assert asked(run_at="2030-01-31T12:00:00+02:00").run_at_ms == 1_896_084_000_000
    assert asked(run_at="2030-01-31T10:00:00.0001Z").run_at_ms == 1_896_084_000_001
    assert asked(run_at="1969-12-31T00:00:00Z").run_at_ms == 0
    assert asked(run_at="0001-01-01T00:00:00+23:59").run_at_ms == 0
    assert asked(run_at="9999-12-31T23:59:59-23:59").run_at_ms == 253_402_387_139_000
    assert [asked(delay_seconds=s).delay_ms for s in (0, 0.0001, 0.25, 31_536_000)] == [0, 1, 250, 31_536_000_000]


def test_a_time_to_live_longer_than_a_century_is_a_century() -> None:
    assert asked(metadata={"ttl_seconds": 5}).ttl_seconds == 5.0
    for ttl in (1e300, 10**400):
        assert asked(metadata={"ttl_seconds": ttl}).ttl_seconds == 3_153_600_000.0


def test_extra_json_holds_only_what_was_given() -> None:
    assert asked(tags=["a"]).extra_json == b'{"tags":["a"]}'
    whole = asked(metadata={"a": 1}, tags=["é"], idempotency_key="k").extra_json
    assert json.loads(whole) == {"metadata": {"a": 1}, "tags": ["é"], "idempotency_key": "k"}


def test_the_key_of_the_header_wins_over_that_of_the_body() -> None:
    assert parse('{"task_type": "e", "idempotency_key": "body"}', key="header").idempotency_key == "header"
    assert parse('{"task_type": "e"}', key="header").idempotency_key == "header"
    assert pointers(lambda: parse('{"task_type": "e"}', key="")) == ["/idempotency_key"]


def test_idem_01_the_fingerprint_is_that_of_what_is_asked_not_of_its_spelling() -> None:
    first = parse('{"task_type": "e", "payload": {"a": 1, "b": {"c": 2, "d": 3}}, "idempotency_key": "k"}')
    same = [
        '{"payload":{"b":{"d":3,"c":2},"a":1},"task_type":"e"}',
        '{"task_type": "\\u0065", "payload": {"a": 1, "b": {"c": 2, "d": 3}}, "queue": "default", "priority": 5.0}',
        '{"task_type": "e", "payload": {"a": 1, "b": {"c": 2, "d": 3}}, "idempotency_key": "other", "tags": []}',
    ]
    other = [
        '{"task_type": "f", "payload": {"a": 1, "b": {"c": 2, "d": 3}}}',
        '{"task_type": "e", "payload": {"a": 1, "b": {"c": 2, "d": 4}}}',
        '{"task_type": "e", "payload": {"a": 1, "b": {"c": 2, "d": 3}}, "priority": 6}',
        '{"task_type": "e", "payload": {"a": 1, "b": {"c": 2, "d": 3}}, "run_at": "2030-01-31T12:00:00Z"}',
        '{"task_type": "e", "payload": {"a": "1", "b": {"c": 2, "d": 3}}}',
        '{"task_type": "e", "payload": {"a": 1, "b": {"c": 2, "d": 3, "big": 18446744073709551617}}}',
    ]
    assert {parse(body).fingerprint for body in same} == {first.fingerprint}
    assert len({parse(body).fingerprint for body in other} | {first.fingerprint}) == len(other) + 1
    assert len(first.fingerprint) == 32
    assert int(first.fingerprint, 16)
    assert asked(run_at="2030-01-31T12:00:00+02:00").fingerprint == asked(run_at="2030-01-31T10:00:00.000Z").fingerprint


def test_a_batch_gives_a_submission_or_an_error_for_each_object_in_order() -> None:
    body = {"tasks": [{"task_type": "a"}, {"task_type": ""}, 5, {"task_type": "b", "payload": {"x": "y" * 30}}]}
    results = parse_batch(json.dumps(body).encode(), SubmissionLimits(max_payload_bytes=30))
    assert [type(result) for result in results] == [Submission, InvalidTask, InvalidTask, PayloadTooLarge]
    assert parse_batch(b'{"tasks": []}', LIMITS) == []


@pytest.mark.parametrize("body", ["[]", "{}", '{"tasks": {}}', '{"tasks": null}', '{"tasks": [], "x": 1}', "5"])
def test_a_batch_that_is_not_a_batch_is_refused_whole(body: str) -> None:
    with pytest.raises(InvalidTask):
        parse_batch(body.encode(), LIMITS)


def test_a_batch_holds_a_thousand_tasks_and_no_more() -> None:
    tasks = [{"task_type": "a"}] * MAX_BATCH
    assert len(parse_batch(json.dumps({"tasks": tasks}).encode(), LIMITS)) == MAX_BATCH
    with pytest.raises(PayloadTooLarge):
        parse_batch(json.dumps({"tasks": [*tasks, {"task_type": "a"}]}).encode(), LIMITS)


def test_python_callers_get_the_same_rules() -> None:
    moment = datetime(2030, 1, 31, 12, tzinfo=timezone(timedelta(hours=2)))
    submission = submission_from_object({"task_type": "e", "run_at": moment, "payload": {"pair": (1, 2)}}, LIMITS)
    assert submission.run_at_ms == 1_896_084_000_000
    assert submission.payload_json == b'{"pair":[1,2]}'
    for fields in ({"priority": "5"}, {"priority": True}, {"nonsense": 1}, {"run_at": datetime(2030, 1, 31)}):  # noqa: DTZ001
        assert pointers(partial(submission_from_object, {"task_type": "e", **fields}, LIMITS)) == [
            f"/{next(iter(fields))}"
        ]


def test_python_values_that_json_cannot_say_are_refused_not_changed() -> None:
    cycle: list[Any] = []
    cycle += [cycle, cycle]
    for value in (math.nan, math.inf, {1: 2}, {1, 2}, b"x", datetime.now(UTC), object(), "\ud800", cycle, 10**5_000):
        with pytest.raises((InvalidTask, PayloadTooLarge)):
            submission_from_object({"task_type": "e", "payload": {"a": value}}, LIMITS)
        with pytest.raises((InvalidTask, PayloadTooLarge)):
            submission_from_object({"task_type": "e", "metadata": {"a": [value]}}, LIMITS)


def test_what_the_caller_does_to_his_dict_afterwards_does_not_change_the_task() -> None:
    payload = {"a": 1}
    submission = submission_from_object({"task_type": "e", "payload": payload}, LIMITS)
    payload["a"] = 2
    assert submission.payload_json == b'{"a":1}'


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(payload=st.dictionaries(st.text(), JSON_VALUES, max_size=5), ascii_only=st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_json_object_comes_through_unchanged(payload: dict[str, Any], ascii_only: bool) -> None:
    body = json.dumps({"task_type": "e", "payload": payload}, ensure_ascii=ascii_only)
    assert json.dumps(json.loads(parse(body).payload_json)) == json.dumps(payload)


FIELD_NAMES = st.sampled_from([*Submission.model_fields, "x", ""])


@given(fields=st.dictionaries(FIELD_NAMES, JSON_VALUES, max_size=6))
@settings(max_examples=80, deadline=None)
def test_any_fields_are_accepted_or_refused_by_name(fields: dict[str, Any]) -> None:
    try:
        parse(json.dumps(fields))
    except PayloadTooLarge:
        found = []
    except InvalidTask as refused:
        found = refused.context["errors"]
    else:
        found = []
    assert all(set(error) == {"pointer", "message"} for error in found)


@given(body=st.binary(max_size=200))
@example(b'{"a": "\\ud800\\udc00"}')
@settings(max_examples=80, deadline=None)
def test_any_bytes_are_json_or_refused(body: bytes) -> None:
    try:
        value = load_json(body)
    except InvalidTask:
        return
    assert json.loads(body.decode()) == value
