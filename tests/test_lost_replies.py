"""REDIS-11: a reply that is lost once changes neither what the caller hears nor what Redis holds.

Each case runs twice on an empty server, without the loss and with it: through a proxy that forwards a script, swallows
its reply and cuts the connection.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from dtq.bulk import BulkJob, BulkWish, run_job
from dtq.deadletters import DeadFilter
from dtq.errors import RedisUnavailable
from dtq.model import Actor, HandlerPolicy
from dtq.redisio import Server
from dtq.states import Status
from tests.conftest import ProxyFactory
from tests.support.dump import dump, shape
from tests.support.engine import FAR_MS, Engine, outcome
from tests.support.invariants import check_invariants

S = Status
SOMEBODY = Actor("somebody", "because", "r1")
Step = Callable[[Engine], Any]


class Case:
    """One script: how to get there, and the call whose reply is lost."""

    def __init__(self, script: str, call: Callable[[Engine, Any], Any], before: Step = lambda engine: None) -> None:
        self.script = script
        self.before = before
        self.call = call


def _submit_all_sorts(engine: Engine, _: Any) -> Any:
    """New ones, a second with the same key in the same call, a delayed one, one refused for its key's body."""
    answers = engine.offer(
        engine.submission(priority=9, payload={"n": 1}),
        engine.submission(idempotency_key="k", metadata={"ttl_seconds": 60}),
        engine.submission(idempotency_key="k", metadata={"ttl_seconds": 60}),
        engine.submission(idempotency_key="k", payload={"other": 1}),
        engine.submission(delay_seconds=60, queue="later"),
    )
    return [(type(answer).__name__, getattr(answer, "task_id", None)) for answer in answers]


def _running(engine: Engine) -> Any:
    engine.submit_many(3, idempotency_key=None)
    return engine.claim("w1", 2)


def _commit(kind: Any, **fields: Any) -> Case:
    def call(engine: Engine, claims: Any) -> Any:
        return engine.broker.commit("w1", [outcome(claim, kind, **fields) for claim in claims])

    return Case("task_commit", call, _running)


def _commit_after_cancel(engine: Engine) -> Any:
    claims = _running(engine)
    engine.cancel(claims[0].task_id)
    return claims


def _dead_letter(engine: Engine) -> Any:
    return engine.seed(S.DEAD_LETTERED, "default", idempotency_key="k").task_id


def _scheduled(engine: Engine) -> Any:
    engine.submit_many(3, delay_seconds=60)
    engine.seed(S.RETRYING, "default")
    engine.let_ttl_pass(engine.seed(S.PENDING, "default").task_id)


def _lost_leases(engine: Engine) -> Any:
    engine.register("w1")
    _running(engine)
    engine.end_leases("w1")


def _ended_retention(engine: Engine) -> Any:
    for status in (S.SUCCEEDED, S.CANCELLED, S.FAILED):
        seeded = engine.seed(status, "default", idempotency_key=f"k{status}")
        engine.server.call("ZADD", engine.keys.finished(), 1, f"{seeded.task_id} {status.value} default")


def _stale_worker(engine: Engine) -> Any:
    engine.register("w1")
    engine.submit()
    engine.commit(engine.claim_one())
    engine.server.pipeline([("ZADD", engine.keys.workers(), 1, "w1"), ("DEL", engine.keys.worker("w1"))])


def _idle_queue(engine: Engine) -> Any:
    engine.server.call("ZADD", engine.keys.queues(), 1, "idle")
    engine.server.call("XADD", engine.keys.wake("idle"), "*", "t", "")


def _lost_places(engine: Engine) -> Any:
    engine.submit_many(3)
    engine.submit(delay_seconds=60)
    engine.server.call("DEL", engine.keys.stream("default", 5), engine.keys.schedule())


def _leader(engine: Engine) -> Any:
    worker = engine.register("w1")
    assert engine.broker.tick(worker, []).leader
    return worker


def _tick(engine: Engine, claims: Any) -> Any:
    engine.cancel(claims[0].task_id)
    return engine.broker.tick(engine.worker("w1"), claims)._asdict()


def _registered_and_running(engine: Engine) -> Any:
    engine.register("w1")
    return _running(engine)


def _pause(engine: Engine) -> Any:
    engine.pause("default", "somebody", "maintenance")


def _begin_bulk(engine: Engine, _: Any = None) -> Any:
    job = engine.bulk.begin(BulkWish(action="dlq.requeue", wanted=DeadFilter(reason="permanent")), SOMEBODY)
    return job.total, job.state


def _bulk_job(engine: Engine) -> Any:
    engine.bury(3)
    return engine.bulk.begin(BulkWish(action="dlq.requeue", wanted=DeadFilter()), SOMEBODY)


def _queue_purge(engine: Engine) -> Any:
    engine.submit_many(3)
    engine.submit(delay_seconds=60)
    return engine.bulk.begin(BulkWish(action="queue.purge", queue="default"), SOMEBODY)


def _run_bulk(engine: Engine, job: BulkJob) -> Any:
    ended = run_job(engine.bulk, job)
    return ended.state, ended.done, ended.skipped, ended.failed


HANDLERS = {"echo": HandlerPolicy(3, 500, {"type": "object"}), "sleep": HandlerPolicy(None, None, None)}

CASES: dict[str, Case] = {
    "submit": Case("task_submit", _submit_all_sorts),
    "commit succeed": _commit("succeed", result=b'{"a":1}'),
    "commit a large result": _commit("succeed", result_too_large=True),
    "commit retry": _commit("retry", delay_ms=60_000),
    "commit dead": _commit("dead", reason="exhausted"),
    "commit snooze": _commit("snooze", delay_ms=60_000),
    "commit unknown": _commit("unknown"),
    "commit after a cancel": Case(
        "task_commit", lambda e, claims: [e.commit(claim) for claim in claims], _commit_after_cancel
    ),
    "hand back": Case("task_hand_back", lambda e, claims: e.broker.hand_back("w1", claims), _running),
    "hand back after a cancel": Case(
        "task_hand_back", lambda e, claims: e.broker.hand_back("w1", claims), _commit_after_cancel
    ),
    "start": Case("task_start", lambda e, claims: e.broker.start_suspect("w1", claims[0], True), _running),
    "progress": Case("task_progress", lambda e, claims: e.broker.progress("w1", claims[0], 0.25, "a\tb\nc"), _running),
    "cancel waiting": Case("task_cancel", lambda e, i: e.cancel(i, "why"), lambda e: e.submit()),
    "cancel scheduled": Case("task_cancel", lambda e, i: e.cancel(i), lambda e: e.submit(delay_seconds=60)),
    "cancel running": Case("task_cancel", lambda e, claims: e.cancel(claims[0].task_id, "why"), _running),
    "requeue": Case("task_requeue", lambda e, i: e.requeue(i, "me", queue="other", priority=9), _dead_letter),
    "pause": Case("queue_pause", lambda e, _: e.pause("default", "me", "why")),
    "resume": Case("queue_resume", lambda e, _: e.resume("default", "me"), _pause),
    "discard": Case("task_discard", lambda e, i: e.discard(i, "me"), _dead_letter),
    "begin a bulk job": Case("bulk_begin", _begin_bulk),
    "a step of a bulk job": Case("bulk_dead", lambda e, job: e.bulk.step(job, "r1").code, _bulk_job),
    "abort a bulk job": Case("bulk_abort", lambda e, job: e.bulk.abort(job.bulk_id, SOMEBODY).done, _bulk_job),
    "tell a worker": Case(
        "worker_command", lambda e, _: e.control.tell_worker("w1", "quiet", SOMEBODY), lambda e: e.register()
    ),
    "register": Case("worker_register", lambda e, _: e.broker.register(e.worker(), HANDLERS)),
    "tick": Case("worker_tick", _tick, _registered_and_running),
    "leave": Case("worker_leave", lambda e, _: e.broker.deregister("w1", ["default"]), _leader),
    "forget": Case("worker_forget", lambda e, _: e.broker.deregister("w1", ["default"]), _registered_and_running),
    "resign": Case("worker_resign", lambda e, _: e.broker.resign("w1"), _leader),
    "begin an operation": Case("operation_begin", lambda e, _: e.broker.begin_operation("mail", "t1", 5)),
    "end an operation": Case(
        "operation_end",
        lambda e, _: e.broker.end_operation("mail", "t1", "42", 60),
        lambda e: e.broker.begin_operation("mail", "t1", 5),
    ),
    "end an operation that failed": Case(
        "operation_end",
        lambda e, _: e.broker.end_operation("mail", "t1", None, 60),
        lambda e: e.broker.begin_operation("mail", "t1", 5),
    ),
    "requeue many": Case("bulk_dead", _run_bulk, _bulk_job),
    "purge a queue": Case("bulk_purge", _run_bulk, _queue_purge),
    "find dead letters": Case(
        "find_dead", lambda e, _: e.queries.dead_letters.count(DeadFilter(queue="default"), 5)[0], _bulk_job
    ),
    "list": Case("list_tasks", lambda e, _: e.queries.script_works()),
    "queue info": Case("queue_info", lambda e, _: e.queries.queue("default").depth, _running),
    "counters": Case("read_minutes", lambda e, _: e.charts.hour(["default"]).counts("started"), _running),
    "gauges": Case("read_gauges", lambda e, _: e.charts.hour(["default"]).most("running"), _running),
}

COUNTED: dict[str, Case] = {
    # A repeat does what is left: the state is the same, but what the first run did is not counted twice.
    "promote": Case("task_promote", lambda e, _: e.broker.upkeep.promote(late_ms=-FAR_MS), _scheduled),
    "reclaim": Case("task_reclaim", lambda e, _: e.broker.upkeep.reclaim(), _lost_leases),
    "sweep tasks": Case("sweep_finished", lambda e, _: e.broker.upkeep.sweep(), _ended_retention),
    "sweep workers, forget": Case("worker_forget", lambda e, _: e.broker.upkeep.sweep(), _stale_worker),
    "sweep workers, leave": Case("worker_leave", lambda e, _: e.broker.upkeep.sweep(), _stale_worker),
    "sweep queues": Case("sweep_queue", lambda e, _: e.broker.upkeep.sweep(), _idle_queue),
    "sample": Case("sample_queues", lambda e, _: e.broker.upkeep.sample(), _running),
    "reconcile": Case("reconcile", lambda e, _: e.reconcile_all(), _lost_places),
    "settle": Case("task_settle", lambda e, _: e.broker.settle("w1", ["default"], []), _running),
}


@pytest.fixture(autouse=True)
def ids_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a millisecond the order of ids is chance; two runs that are compared need the same."""
    numbers = itertools.count(1)
    monkeypatch.setattr("dtq.model.new_task_id", lambda: f"{next(numbers):012x}7{'0' * 19}")


def _run(server: Server, case: Case, through: Engine, drop: Callable[[Engine], None]) -> tuple[Any, Any]:
    server.call("FLUSHALL")
    given = case.before(through)
    if case.script == "task_reclaim":  # at its first look, a process knows nothing of the past of a young server
        through.broker.upkeep.reclaim(late_ms=FAR_MS)
        time.sleep(0.003)
    drop(through)
    answer = shape(case.call(through, given))
    return answer, shape(dump(server))


def _both(server: Server, flaky_proxy: ProxyFactory, case: Case) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    proxy = flaky_proxy(server.safe_url)
    through = Server.connect(proxy.url)
    engine = Engine(through)

    def lose(engine: Engine) -> None:
        script = engine.broker.scripts.script(case.script)
        server.call("SCRIPT", "LOAD", script.source)
        proxy.drop_next_reply(script.sha.encode())

    without = _run(server, case, Engine(through), lambda engine: None)
    assert proxy.dropped == 0
    with_loss = _run(server, case, engine, lose)
    assert proxy.dropped == 1, "the reply of the script was not lost"
    state = check_invariants(server, engine.keys, engine.settings) if "places" not in case.before.__name__ else None
    assert state is None or state.raw is not None
    through.close()
    return without, with_loss


@pytest.mark.parametrize("name", CASES)
def test_redis_11_a_lost_reply_changes_neither_answer_nor_state(
    server: Server, flaky_proxy: ProxyFactory, name: str
) -> None:
    without, with_loss = _both(server, flaky_proxy, CASES[name])
    assert with_loss[0] == without[0]
    assert with_loss[1] == without[1]


@pytest.mark.parametrize("name", COUNTED)
def test_redis_11_upkeep_whose_reply_was_lost_leaves_the_same_state(
    server: Server, flaky_proxy: ProxyFactory, name: str
) -> None:
    without, with_loss = _both(server, flaky_proxy, COUNTED[name])
    assert with_loss[1] == without[1]


def test_redis_11_the_reply_is_lost_of_the_call_that_loads_the_script(
    server: Server, flaky_proxy: ProxyFactory
) -> None:
    """After SCRIPT FLUSH the script goes as a whole, and then once more by its digest."""
    proxy = flaky_proxy(server.safe_url)
    engine = Engine(Server.connect(proxy.url))
    server.call("SCRIPT", "FLUSH")
    proxy.drop_next_reply(b"\r\nEVAL\r\n")
    engine.submit()
    assert proxy.dropped == 1
    assert engine.queries.counts("default")[S.QUEUED] == 1
    engine.server.close()


def test_redis_11_what_a_claim_took_whose_reply_was_lost_is_given_back_by_settling(
    server: Server, flaky_proxy: ProxyFactory
) -> None:
    proxy = flaky_proxy(server.safe_url)
    engine = Engine(Server.connect(proxy.url))
    ids = engine.submit_many(5)
    (held,) = engine.claim("w1", 1)
    proxy.drop_next_reply(engine.broker.scripts.script("task_claim").sha.encode())
    with pytest.raises(RedisUnavailable):
        engine.claim("w1", 3)
    assert len(engine.pending()) == 4, "the claim is not sent twice"
    assert engine.broker.settle("w1", ["default"], [held.task_id]) == 3
    assert engine.broker.settle("w1", ["default"], [held.task_id]) == 0
    claims = engine.claim("w2", 10)
    assert [claim.task_id for claim in claims] == ids[1:], "in their old places"
    assert {claim.attempt for claim in claims} == {1}, "the lost claim is not an attempt"
    check_invariants(server, engine.keys, engine.settings)
    engine.server.close()


def test_redis_11_a_claim_that_reaches_redis_twice_takes_nothing_the_second_time(
    server: Server, flaky_proxy: ProxyFactory
) -> None:
    """What the second one took, nobody would know of before its lease ended."""
    proxy = flaky_proxy(server.safe_url)
    engine = Engine(Server.connect(proxy.url))
    engine.register("w1")
    ids = engine.submit_many(4)
    proxy.double_next(b"EVALSHA", times=2)
    for number in range(2):
        assert [claim.task_id for claim in engine.claim("w1", 1)] == ids[number : number + 1]
    assert proxy.doubled == 2
    assert len(engine.pending()) == 2
    check_invariants(server, engine.keys, engine.settings)
    engine.server.close()


@pytest.mark.parametrize("settled", [False, True])
def test_redis_11_a_claim_that_comes_again_or_too_late_says_so_and_takes_nothing(server: Server, settled: bool) -> None:
    """A network may hold a claim up until its worker has given up on it and settled."""
    engine = Engine(server)
    engine.register("w1")
    ids = engine.submit_many(3)
    late = {"items": [("default",)], "worker": "w1", "limit": 1, "ring": "1", "process": engine.broker._process}
    (held,) = engine.claim("w1", 1)
    engine.broker.settle("w1", ["default"], [held.task_id])
    number = engine.broker._claim_number
    if not settled:  # it comes twice, and the first answer is lost
        number += 1
        engine.broker.scripts.run("task_claim", number=number, **late)
    claims, more, _, _, taken_before = engine.broker.scripts.run("task_claim", number=number, **late)
    assert (claims, more, taken_before) == ([], 0, 1)
    engine.broker.settle("w1", ["default"], [held.task_id])
    assert [claim.task_id for claim in engine.claim("w2")] == ids[1:], "nothing was left with nobody"
    next_process = Engine(server)
    engine.submit_many(1)
    assert len(next_process.claim("w1", 1)) == 1, "a process that comes after it under its name begins to count anew"


def test_a_call_is_repeated_once_and_no_more(server: Server, flaky_proxy: ProxyFactory) -> None:
    proxy = flaky_proxy(server.safe_url)
    engine = Engine(Server.connect(proxy.url))
    engine.submit()
    proxy.drop_next_reply(b"EVALSHA", times=2)
    with pytest.raises(RedisUnavailable):
        engine.submit()
    assert engine.queries.counts("default")[S.QUEUED] == 2, "that submission is there, once"
    engine.server.close()


def test_a_call_that_redis_refuses_for_now_is_not_repeated(server: Server, flaky_proxy: ProxyFactory) -> None:
    proxy = flaky_proxy(server.safe_url)
    engine = Engine(Server.connect(proxy.url))
    engine.submit()
    proxy.answer("LOADING Redis is loading the dataset in memory", matching=b"EVALSHA")
    before = len(proxy.commands)
    with pytest.raises(RedisUnavailable):
        engine.submit()
    assert len([one for one in list(proxy.commands)[before:] if b"EVALSHA" in one]) == 1
    engine.server.close()
