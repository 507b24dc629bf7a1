"""What is true after every script, on every kind of server; and that the check of it finds what has come apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dtq.keys import GROUP
from dtq.model import HandlerPolicy
from dtq.redisio import Server
from dtq.states import Status
from tests.support.engine import Engine, Seeded
from tests.support.invariants import check_invariants

S = Status


def _busy_day(server: Server) -> Engine:
    """Something of everything: every status, handed back, reclaimed, requeued, evicted, paused, keyed."""
    engine = Engine(server, dlq_maxlen=2)
    engine.register("w1", handlers={"echo": HandlerPolicy(3, 1000, None)})
    for status in Status:
        engine.seed(status, idempotency_key=f"key of {status}")
    engine.submit_many(5, queue="busy", priority=3)
    engine.submit_many(5, queue="busy", priority=8)
    claims = engine.claim("w1", 6, ["busy"])
    assert engine.broker.hand_back("w1", claims[:2]) == 2
    engine.reclaim()
    engine.register("w1")
    assert [claim.suspect for claim in engine.claim("w1", 5, ["busy"])] == [0, 0]
    (suspect,) = engine.claim("w1", 5, ["busy"])
    engine.broker.start_suspect("w1", suspect, alone=True)
    engine.broker.progress("w1", suspect, 0.5, "half")
    engine.cancel(suspect.task_id)
    engine.commit(suspect, "succeed")
    letters = [engine.fail_for_good(queue="busy-too") for _ in range(4)]
    engine.requeue(letters[-1], "somebody", queue="busy", priority=0)
    engine.commit(engine.claim_one("w1", "busy"), "succeed", result=b"[1]")
    engine.pause("busy", "somebody")
    engine.broker.begin_operation("send the mail", "token", 5)
    engine.broker.tick(engine.worker("w1"), [])
    return engine


def test_nothing_comes_apart_on_a_busy_day(any_server: Server) -> None:
    engine = _busy_day(any_server)
    state = check_invariants(any_server, engine.keys, engine.settings)
    assert {task["status"] for task in state.tasks.values()} == {status.value for status in Status}
    assert engine.reconcile_all() == 0
    check_invariants(any_server, engine.keys, engine.settings)


def test_nothing_comes_apart_in_memory(memory_server: Server) -> None:
    engine = _busy_day(memory_server)
    check_invariants(memory_server, engine.keys, engine.settings)


Damage = Callable[[Engine, Seeded], list[object]]
"""The command that does it."""

DAMAGE: dict[str, tuple[Status, Damage]] = {
    "a lost ticket": (S.QUEUED, lambda e, s: ["DEL", e.keys.stream(s.queue, 5)]),
    "a second ticket": (S.QUEUED, lambda e, s: ["XADD", e.keys.stream(s.queue, 5), "*", "id", s.task_id]),
    "a lost due time": (S.PENDING, lambda e, s: ["DEL", e.keys.schedule()]),
    "a due time of what runs": (S.RUNNING, lambda e, s: ["ZADD", e.keys.schedule(), 1, s.task_id]),
    "a due time of nothing": (S.RUNNING, lambda e, s: ["ZADD", e.keys.schedule(), 1, "x"]),
    "a lost lease": (S.RUNNING, lambda e, s: ["XACK", e.keys.stream(s.queue, 5), GROUP, e.pending(s.queue)[0][0]]),
    "another owner": (S.RUNNING, lambda e, s: ["HSET", e.keys.task(s.task_id), "worker", "w9"]),
    "another status": (S.RETRYING, lambda e, s: ["HSET", e.keys.task(s.task_id), "status", "pending"]),
    "another time of creation": (S.SUCCEEDED, lambda e, s: ["HSET", e.keys.task(s.task_id), "created", 1]),
    "an ended task that will stay": (S.SUCCEEDED, lambda e, s: ["PERSIST", e.keys.task(s.task_id)]),
    "a live task that will vanish": (S.QUEUED, lambda e, s: ["PEXPIRE", e.keys.task(s.task_id), 9999]),
    "a dead letter without its entry": (S.DEAD_LETTERED, lambda e, s: ["DEL", e.keys.dead_letter()]),
    "an end that nobody would clear away": (S.FAILED, lambda e, s: ["DEL", e.keys.finished()]),
    "a result of nobody": (S.QUEUED, lambda e, s: ["SET", e.keys.result("x"), 1, "PX", 9999]),
    "a key that blocks for ever": (S.SUCCEEDED, lambda e, s: ["PERSIST", e.keys.idempotency(s.queue, "k")]),
    "a key that frees too early": (S.QUEUED, lambda e, s: ["PEXPIRE", e.keys.idempotency(s.queue, "k"), 9999]),
    "a counter that drifted": (S.QUEUED, lambda e, s: ["HINCRBY", e.keys.totals(s.queue), "echo:submitted", 1]),
    "a key that no rule knows": (S.QUEUED, lambda e, s: ["SET", f"{e.keys.namespace}:what:is:this", 1]),
    "a queue that is not listed": (S.QUEUED, lambda e, s: ["DEL", e.keys.queues()]),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_the_check_finds(server: Server, what: str) -> None:
    status, damage = DAMAGE[what]
    engine = Engine(server)
    engine.register("w1")
    seeded = engine.seed(status, idempotency_key="k")
    check_invariants(server, engine.keys, engine.settings)
    server.call(*damage(engine, seeded))  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        check_invariants(server, engine.keys, engine.settings)
