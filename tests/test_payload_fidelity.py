"""What is submitted is what the handler gets, to the last digit, on every way that a task can take."""

from __future__ import annotations

import json

import pytest

from dtq.model import Claim, ErrorInfo
from dtq.redisio import Server
from dtq.settings import load_settings
from dtq.states import Status
from dtq.submission import SubmissionLimits, parse_submission
from dtq.taskfilter import TaskFilter
from tests.support.engine import Engine

S = Status

TRICKY = (
    rb'{"id":9007199254740993,"big":130775545883395173,"e":[],"o":{},"f":1.0,"u":"\u0000\ud83d\ude00","neg":-0.0,'
    rb'"n":null,"t":true,"deep":[[[[{"a":[]}]]]],"exp":1e-7,"huge":123456789012345678901234567890,"s":"\"\\/\b"}'
)


def _way(engine: Engine, body: bytes) -> list[tuple[bytes, bytes]]:
    """Delayed, lost, handed back, snoozed, failed, dead, requeued elsewhere: payload and extra of every claim."""
    engine.register("w1")
    engine.offer(parse_submission(body, SubmissionLimits.from_settings(load_settings(env_file=None))))
    seen: list[tuple[bytes, bytes]] = []

    def claim(queue: str = "default") -> Claim:
        held = engine.claim_one("w1", queue)
        seen.append((held.payload, held.extra))
        return held

    assert engine.promote() == 1
    claim()
    assert engine.reclaim() == 1
    engine.broker.hand_back("w1", [claim()])
    assert engine.commit(claim(), "snooze", delay_ms=1000) is S.PENDING
    engine.promote()
    assert engine.commit(claim(), "retry", delay_ms=1000) is S.RETRYING
    engine.promote()
    dead = claim()
    assert engine.commit(dead, "dead", reason="exhausted") is S.DEAD_LETTERED
    engine.requeue(dead.task_id, "somebody", queue="other", priority=9)
    last = claim("other")
    assert engine.commit(last, result=last.payload) is S.SUCCEEDED
    return seen


def test_pay_04_the_handler_gets_exactly_the_same_json_each_time(any_server: Server) -> None:
    engine = Engine(any_server)
    body = b'{"task_type":"echo","delay_seconds":60,"payload":' + TRICKY + b',"metadata":{"k":[]},"tags":["\xc3\xbc"]}'
    seen = _way(engine, body)
    assert len(seen) == 6
    assert len(set(seen)) == 1
    payload, extra = seen[0]
    expected = json.loads(TRICKY)
    assert repr(json.loads(payload)) == repr(expected), "repr tells 1.0 from 1 and -0.0 from 0.0"
    assert json.loads(extra) == {"metadata": {"k": []}, "tags": ["ü"]}
    page = engine.queries.tasks(TaskFilter())
    task = engine.task(page.tasks[0].task_id)
    assert repr(task.payload) == repr(task.result) == repr(expected)


def test_pay_04_it_holds_in_memory_too(memory_server: Server) -> None:
    engine = Engine(memory_server)
    seen = _way(engine, b'{"task_type":"echo","delay_seconds":60,"payload":' + TRICKY + b"}")
    assert {repr(json.loads(payload)) for payload, _ in seen} == {repr(json.loads(TRICKY))}


@pytest.mark.parametrize("text", ["", "ü", "ü😀\r\n\x00" * 10_000], ids=len)
def test_payloads_of_every_size_come_back_whole(any_server: Server, text: str) -> None:
    engine = Engine(any_server)
    engine.submit(payload={"text": text})
    assert json.loads(engine.claim_one().payload) == {"text": text}


def test_a_result_is_kept_as_it_was_given_and_one_that_is_too_large_is_told(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.submit_many(3)
    kept, large, none = engine.claim()
    engine.commit(kept, result='{"ü":[1.0,{}]}'.encode())
    engine.commit(large, result_too_large=True)
    engine.commit(none)
    told = [engine.task(claim.task_id) for claim in (kept, large, none)]
    assert [(task.result_state, task.result) for task in told] == [
        ("stored", {"ü": [1.0, {}]}),
        ("too_large", None),
        ("none", None),
    ]
    any_server.call("DEL", engine.keys.result(kept.task_id))
    assert engine.task(kept.task_id).result_state == "expired"


def test_an_error_text_survives_with_all_its_characters(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.submit()

    text = 'a\tb\n"quoted" \\ ü😀 ]]--\''
    engine.commit(engine.claim_one(), "dead", error=ErrorInfo("Odd'Error", text, text))
    (task,) = engine.queries.tasks(TaskFilter()).tasks
    whole = engine.task(task.task_id)
    assert whole.error == {"class": "Odd'Error", "message": text}
    assert (whole.attempts[0].message, whole.attempts[0].traceback) == (text, text)
    assert all(len(event) == 7 for event in engine.events())
