"""What failed for good: kept in one bounded stream, evicted aloud, requeued with its history."""

from __future__ import annotations

import pytest

from dtq.errors import TaskNotFound, WrongState
from dtq.model import ErrorInfo
from dtq.redisio import Server
from dtq.states import Disposition, Status
from tests.support.engine import Engine, outcome
from tests.support.invariants import check_invariants

S = Status


def letters(engine: Engine) -> list[dict[str, str]]:
    """The dead letters, oldest first."""
    entries = engine.server.call("XRANGE", engine.keys.dead_letter(), "-", "+")
    return [
        {name.decode(): value.decode() for name, value in zip(fields[::2], fields[1::2], strict=True)}
        for _, fields in entries
    ]


def test_a_dead_letter_tells_what_became_of_its_task(any_server: Server) -> None:
    engine = Engine(any_server)
    task_id = engine.submit(task_type="mail", queue="mails")
    claim = engine.claim_one("w7", "mails")
    engine.commit(claim, "dead", worker_id="w7", reason="exhausted", error=ErrorInfo("OSError", "no route", "Trace"))
    assert letters(engine) == [
        {
            "id": task_id,
            "queue": "mails",
            "type": "mail",
            "reason": "exhausted",
            "attempts": "1",
            "worker": "w7",
            "error": '{"class":"OSError","message":"no route"}',
        }
    ]
    task = engine.task(task_id)
    assert (task.status, task.reason, task.failures) == (S.DEAD_LETTERED, "exhausted", 1)
    assert task.finished_at is not None


@pytest.mark.parametrize("a_script", [1, 7, 100])
def test_dlq_01_what_does_not_fit_goes_out_at_the_old_end_and_is_counted_aloud(server: Server, a_script: int) -> None:
    engine = Engine(server, dlq_maxlen=100)
    engine.submit_many(150)
    claims = engine.claim("w1", 100) + engine.claim("w1", 100)
    expected = [claim.task_id for claim in claims]
    for start in range(0, 150, a_script):
        engine.broker.commit("w1", [outcome(claim, "dead") for claim in claims[start : start + a_script]])
    assert [letter["id"] for letter in letters(engine)] == expected[50:]
    counts = engine.queries.counts("default")
    assert (counts[S.DEAD_LETTERED], counts[S.FAILED]) == (100, 50)
    assert engine.totals()["echo:evicted"] == 50
    assert [event[1] for event in engine.events() if event[0] == "DEAD_LETTER_EVICTED"] == expected[:50]
    check_invariants(server, engine.keys, engine.settings)


def test_dlq_01_what_fell_out_is_told_in_the_log_once(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(server, dlq_maxlen=100)
    engine.bury(150)
    engine.broker.upkeep.sweep()
    (record,) = [one for one in caplog.records if "DTQ_DLQ_MAXLEN" in one.getMessage()]
    assert (record.levelname, record.__dict__["dead_letters"]) == ("WARNING", 50)
    engine.broker.upkeep.sweep()
    assert len([one for one in caplog.records if "DTQ_DLQ_MAXLEN" in one.getMessage()]) == 1


def test_dlq_02_the_errors_of_many_failures_stay_small(server: Server) -> None:
    """A handler's message is bounded before it is stored; here is what a thousand of the largest cost."""
    engine = Engine(server)
    error = ErrorInfo("E" * 100, "m" * 500, "t" * 4_000)
    before = int(server.call("MEMORY", "USAGE", engine.keys.dead_letter()) or 0)
    ids = engine.bury(1_000, error=error)
    assert int(server.call("MEMORY", "USAGE", engine.keys.dead_letter())) - before < 2_000_000
    sizes = server.pipeline([("MEMORY", "USAGE", engine.keys.attempts(task_id)) for task_id in ids[:10]])
    assert max(map(int, sizes)) <= 8 * 1024


def test_dlq_01_a_letter_that_falls_out_of_the_script_that_wrote_it_ends_as_failed(any_server: Server) -> None:
    engine = Engine(any_server, dlq_maxlen=1)
    engine.submit_many(3)
    claims = engine.claim()
    statuses = engine.broker.commit("w1", [outcome(claim, "dead") for claim in claims])
    assert statuses == [S.DEAD_LETTERED] * 3
    assert [engine.task(claim.task_id).status for claim in claims] == [S.FAILED, S.FAILED, S.DEAD_LETTERED]
    check_invariants(any_server, engine.keys, engine.settings)


def test_a_limit_that_was_lowered_is_reached_in_steps(server: Server) -> None:
    engine = Engine(server)
    for _ in range(30):
        engine.fail_for_good()
    lower = Engine(server, dlq_maxlen=10)
    lower.fail_for_good()
    assert len(letters(lower)) == 28, "one burial evicts a few, not all"
    lower.broker.upkeep.sweep()
    assert len(letters(lower)) == 10
    check_invariants(server, lower.keys, lower.settings)


def test_an_entry_that_is_no_letter_of_ours_is_evicted_without_harm(any_server: Server) -> None:
    engine = Engine(any_server, dlq_maxlen=1)
    live = engine.submit(queue="live")
    any_server.call("XADD", engine.keys.dead_letter(), "*", "id", live)
    any_server.call("XADD", engine.keys.dead_letter(), "*", "junk", "x")
    dead = engine.fail_for_good()
    assert [letter["id"] for letter in letters(engine)] == [dead]
    assert engine.task(live).status is S.QUEUED
    check_invariants(any_server, engine.keys, engine.settings)


def test_without_the_stream_a_task_that_failed_for_good_is_failed(any_server: Server) -> None:
    engine = Engine(any_server, dlq_enabled=False)
    task_id = engine.fail_for_good()
    task = engine.task(task_id)
    assert (task.status, task.reason) == (S.FAILED, "permanent")
    assert letters(engine) == []
    assert engine.kinds(task_id)[-1] == "TASK_FAILED"
    check_invariants(any_server, engine.keys, engine.settings)


def test_dlq_03_a_requeue_keeps_the_history_says_who_and_begins_anew(any_server: Server) -> None:
    engine = Engine(any_server)
    task_id = engine.submit(max_attempts=3, metadata={"ttl_seconds": 3600})
    for number in range(2):
        engine.commit(engine.claim_one(), "retry", delay_ms=10, error=ErrorInfo("OSError", f"try {number}", "Trace"))
        engine.promote()
    engine.commit(engine.claim_one(), "dead", reason="exhausted", error=ErrorInfo("OSError", "last try"))
    expires = engine.task(task_id).expires_at
    any_server.call("HSET", engine.keys.task(task_id), "expires", 1)
    before = engine.task(task_id)

    engine.requeue(task_id, "Ann", queue="elsewhere", priority=8)

    task = engine.task(task_id)
    assert (task.status, task.queue, task.priority, task.requeued) == (S.QUEUED, "elsewhere", 8, 1)
    assert (task.attempt, task.failures, task.crashes, task.error, task.reason) == (0, 0, 0, None, None)
    assert task.finished_at is None
    assert task.seq > before.seq, "the fencing token goes on"
    assert task.expires_at is not None
    assert expires is not None
    assert task.expires_at >= expires, "its ttl starts anew"
    assert letters(engine) == []
    claim = engine.claim_one("w2", "elsewhere")
    assert claim.attempt == 1
    engine.commit(claim, worker_id="w2")
    done = engine.task(task_id)
    told = [(one.number, one.worker_id, one.outcome, one.message) for one in done.attempts]
    assert told == [
        (1, "w1", Disposition.FAILED, "try 0"),
        (2, "w1", Disposition.FAILED, "try 1"),
        (3, "w1", Disposition.FAILED, "last try"),
        (0, "", Disposition.REQUEUED, "requeued by Ann"),
        (1, "w2", Disposition.SUCCEEDED, None),
    ]
    assert all(one.finished_at is not None for one in done.attempts)
    assert done.attempts[0].retry_delay_ms == 10
    assert done.error is None
    assert engine.totals("elsewhere")["echo:requeued"] == 1
    check_invariants(any_server, engine.keys, engine.settings)


def test_a_success_after_a_failure_shows_no_stale_error(server: Server) -> None:
    engine = Engine(server)
    task_id = engine.submit()
    engine.commit(engine.claim_one(), "retry", delay_ms=10)
    assert engine.task(task_id).error == {"class": "ValueError", "message": "it did not work"}
    engine.promote()
    engine.commit(engine.claim_one())
    assert engine.task(task_id).error is None


@pytest.mark.parametrize("status", [status for status in Status if status is not S.DEAD_LETTERED])
def test_only_a_dead_letter_can_be_requeued(server: Server, status: Status) -> None:
    engine = Engine(server)
    seeded = engine.seed(status)
    with pytest.raises(WrongState) as error:
        engine.requeue(seeded.task_id, "somebody")
    assert error.value.context["status"] == status


def test_a_dead_letter_that_was_discarded_is_not_requeued(server: Server) -> None:
    engine = Engine(server)
    dead = engine.fail_for_good()
    engine.discard(dead)
    with pytest.raises(WrongState):
        engine.requeue(dead, "somebody")
    with pytest.raises(TaskNotFound):
        engine.requeue("f" * 32, "somebody")


def test_a_dead_letter_can_be_requeued_again_and_again(server: Server) -> None:
    engine = Engine(server)
    dead = engine.fail_for_good()
    for number in range(1, 4):
        engine.requeue(dead, "somebody")
        engine.commit(engine.claim_one(), "dead")
        assert (engine.task(dead).requeued, engine.task(dead).status) == (number, S.DEAD_LETTERED)
    check_invariants(server, engine.keys, engine.settings)
