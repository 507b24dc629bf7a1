"""PAY-01: whatever else writes into a task's record, no script stumbles over it, and no other task waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dtq.errors import DtqError, NewerSchema
from dtq.redisio import Server
from dtq.states import Status
from dtq.taskfilter import TaskFilter
from tests.support.dump import dump
from tests.support.engine import FAR_MS, Engine, Seeded, outcome

S = Status
NUMBERS = ("v", "priority", "seq", "created", "attempt", "max_attempts", "timeout", "failures", "suspect", "crashes",
           "started", "expires", "ttl", "unknown", "available", "requeued")  # fmt: skip
NAMES = ("status", "type", "queue", "entry", "worker", "alone", "idem", "dead", "operation", "discarded", "cancel")
VALUES: tuple[str | bytes | None, ...] = ("", "junk", "5-5", b"\xff", None)


def _reclaim(engine: Engine, _: Seeded) -> None:
    engine.end_leases("w1")
    engine.take_back()


def _evict(engine: Engine, _: Seeded) -> None:
    Engine(engine.server, dlq_maxlen=1).fail_for_good(queue="other")


def _on_claim(call: Callable[[Engine, Any], object]) -> Callable[[Engine, Seeded], object]:
    return lambda engine, seeded: call(engine, seeded.claim) if seeded.claim is not None else None


CALLS: dict[str, tuple[tuple[Status, ...], Callable[[Engine, Seeded], object]]] = {
    "claim": ((S.QUEUED,), lambda engine, _: engine.claim("w2")),
    "succeed": ((S.RUNNING,), _on_claim(lambda engine, claim: engine.commit(claim))),
    "fail": ((S.RUNNING,), _on_claim(lambda engine, claim: engine.commit(claim, "dead"))),
    "retry": ((S.RUNNING,), _on_claim(lambda engine, claim: engine.commit(claim, "retry", delay_ms=9))),
    "unknown": ((S.RUNNING,), _on_claim(lambda engine, claim: engine.commit(claim, "unknown"))),
    "hand back": ((S.RUNNING,), _on_claim(lambda engine, claim: engine.broker.hand_back("w1", [claim]))),
    "start": ((S.RUNNING,), _on_claim(lambda engine, claim: engine.broker.start_suspect("w1", claim, True))),
    "progress": ((S.RUNNING,), _on_claim(lambda engine, claim: engine.broker.progress("w1", claim, 0.5, "half"))),
    "tick": ((S.RUNNING,), _on_claim(lambda engine, claim: engine.broker.tick(engine.worker("w1"), [claim]))),
    "settle": ((S.RUNNING,), lambda engine, _: engine.broker.settle("w1", ["default"], [])),
    "reclaim": ((S.RUNNING,), _reclaim),
    "promote": ((S.PENDING, S.RETRYING), lambda engine, _: engine.broker.upkeep.promote(late_ms=-FAR_MS)),
    "reconcile": ((S.PENDING, S.QUEUED, S.RUNNING), lambda engine, _: engine.reconcile_all()),
    "cancel": ((S.PENDING, S.QUEUED, S.RUNNING), lambda engine, seeded: engine.cancel(seeded.task_id)),
    "requeue": ((S.DEAD_LETTERED,), lambda engine, seeded: engine.requeue(seeded.task_id, "somebody")),
    "evict": ((S.DEAD_LETTERED,), _evict),
    "list": ((S.QUEUED,), lambda engine, _: engine.queries.tasks(TaskFilter())),
    "look": ((S.RUNNING,), lambda engine, seeded: engine.queries.task(seeded.task_id)),
    "queue": ((S.QUEUED,), lambda engine, _: engine.queries.queue("default")),
}


@pytest.mark.parametrize("what", CALLS)
def test_pay_01_no_script_stumbles_over_a_record_that_something_else_has_changed(server: Server, what: str) -> None:
    statuses, call = CALLS[what]
    engine = Engine(server)
    faults = []
    for status in statuses:
        for field in NUMBERS + NAMES:
            for value in VALUES:
                server.call("FLUSHALL")
                engine.register("w1")
                seeded = engine.seed(status, "default", idempotency_key="k", metadata={"ttl_seconds": 600})
                record = engine.keys.task(seeded.task_id)
                server.call("HDEL", record, field) if value is None else server.call("HSET", record, field, value)
                try:
                    call(engine, seeded)
                except DtqError as error:  # an answer about this task, told by its code
                    if error.code == "INTERNAL":
                        faults.append(f"{status}, {field}={value!r}: {error!r}")
                except Exception as error:
                    faults.append(f"{status}, {field}={value!r}: {error!r}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("field", "value"), [("created", ""), ("entry", "junk"), ("priority", None), ("queue", None), ("type", "a\tb"),
                         ("attempt", ""), ("failures", "5-5")]
)  # fmt: skip
def test_pay_01_a_spoilt_record_does_not_hold_up_the_outcomes_of_others(
    any_server: Server, field: str, value: str | None
) -> None:
    engine = Engine(any_server)
    engine.submit_many(3)
    claims = engine.claim()
    record = engine.keys.task(claims[1].task_id)
    any_server.call("HDEL", record, field) if value is None else any_server.call("HSET", record, field, value)
    answers = engine.broker.commit("w1", [outcome(claim) for claim in claims])
    assert answers[::2] == [S.SUCCEEDED, S.SUCCEEDED]
    assert answers[1] in (S.DEAD_LETTERED, S.SUCCEEDED)
    assert engine.task(claims[1].task_id).status is answers[1], "what it was told is what is stored"
    assert engine.broker.commit("w1", [outcome(claims[1])]) == [answers[1]], "a repeat gets the first answer"
    engine.register("w1", lease_s=0.001)
    time.sleep(0.003)
    engine.take_back()
    assert engine.pending() == [], "its ticket is gone, or goes with its lease"


def test_a_record_of_a_newer_dtq_is_neither_cancelled_nor_requeued(server: Server) -> None:
    engine = Engine(server)
    for status in (S.QUEUED, S.DEAD_LETTERED):
        task_id = engine.seed(status).task_id
        server.call("HSET", engine.keys.task(task_id), "v", 2)
        before = dump(server)
        with pytest.raises(NewerSchema):
            engine.cancel(task_id)
        with pytest.raises(NewerSchema):
            engine.requeue(task_id, "somebody")
        assert dump(server) == before
