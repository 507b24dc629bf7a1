"""What is let in: depth, schedule, queues and memory have limits that hold exactly, and a refusal leaves no trace."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from dtq.errors import (
    DtqError,
    InvalidTask,
    QueueFull,
    RedisFull,
    RedisUnavailable,
    ScheduleFull,
    TaskNotFound,
    TooManyQueues,
)
from dtq.limits import MemoryGuard, drain_seconds
from dtq.model import Task
from dtq.redisio import Server
from dtq.states import Status
from tests.conftest import ProxyFactory
from tests.support.dump import dump
from tests.support.engine import Engine, outcome
from tests.support.invariants import check_invariants

S = Status


def refused(answer: object, kind: type[DtqError]) -> Any:
    assert isinstance(answer, kind), answer
    return answer


def test_back_01_fifty_clients_at_once_get_exactly_as_many_tasks_in_as_the_limit_allows(server: Server) -> None:
    shared = Server.connect(server.safe_url, max_connections=50, timeout_s=20)
    engine = Engine(shared, max_queue_depth=1000)
    answers: list[object] = []
    most_seen = 0
    lock = threading.Lock()

    def client(number: int) -> None:
        nonlocal most_seen
        for part in range(10):
            keyed = [engine.submission(idempotency_key=f"{number}-{part}-{one}") for one in range(10)]
            got = engine.offer(*keyed)
            depth = engine.depth()
            with lock:
                answers.extend(got)
                most_seen = max(most_seen, depth)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    accepted = [answer for answer in answers if isinstance(answer, Task)]
    full = [answer for answer in answers if isinstance(answer, QueueFull)]
    assert (len(accepted), len(full), most_seen) == (1000, 4000, 1000)
    assert all(1 <= error.context["retry_after"] <= 60 for error in full)
    keys = [name for name in dump(server) if name.startswith(f"{engine.keys.namespace}:idempotency:")]
    assert len(keys) == 1000, "what was refused keeps no key"

    claims = engine.claim("w1", 100)
    assert set(engine.broker.commit("w1", [outcome(claim) for claim in claims])) == {S.SUCCEEDED}
    more = engine.offer(*[engine.submission()] * 150)
    assert Counter(type(answer) for answer in more) == {Task: 100, QueueFull: 50}
    shared.close()


def test_claim_08_the_first_accepted_task_is_still_there_when_the_queue_is_full(server: Server) -> None:
    engine = Engine(server, max_queue_depth=1000)
    answers = engine.offer(*[engine.submission()] * 1500)
    assert Counter(type(answer) for answer in answers) == {Task: 1000, QueueFull: 500}
    assert server.call("XLEN", engine.keys.stream("default", 5)) == 1000
    first = answers[0]
    assert isinstance(first, Task)
    assert engine.claim_one().task_id == first.task_id


def test_retries_requeues_and_what_is_handed_back_are_never_refused(server: Server) -> None:
    engine = Engine(server, max_queue_depth=2, max_scheduled=1)
    engine.submit(queue="other", delay_seconds=60)
    dead = engine.fail_for_good()
    engine.submit_many(2)
    one, other = engine.claim()
    assert engine.commit(one, "retry", delay_ms=60_000) is S.RETRYING, "a retry needs no room in the schedule"
    engine.submit()
    refused(engine.try_submit(), QueueFull)
    engine.requeue(dead, "somebody")
    engine.broker.hand_back("w1", [other])
    assert engine.promote() == 2
    assert engine.depth() == 4
    refused(engine.try_submit(), QueueFull)
    check_invariants(server, engine.keys, engine.settings.model_copy(update={"max_queue_depth": 4}))


def test_each_queue_has_its_own_depth_and_what_is_delayed_does_not_count(server: Server) -> None:
    engine = Engine(server, max_queue_depth=3)
    engine.submit_many(3, queue="one")
    refused(engine.try_submit(queue="one"), QueueFull)
    engine.submit_many(3, queue="two")
    engine.submit_many(5, queue="one", delay_seconds=60)


def test_delayed_tasks_have_a_limit_of_their_own_from_which_retries_are_exempt(server: Server) -> None:
    engine = Engine(server, max_scheduled=10)
    for _ in range(4):
        engine.seed(S.RETRYING)
    answers = engine.offer(*[engine.submission(delay_seconds=60, queue=f"q{number % 3}") for number in range(14)])
    assert [type(answer) for answer in answers] == [Task] * 10 + [ScheduleFull] * 4
    assert refused(answers[-1], ScheduleFull).context["retry_after"] == 60
    refused(engine.try_submit(delay_seconds=1), ScheduleFull)
    assert engine.promote() == 14
    engine.submit(delay_seconds=60)


def test_delayed_tasks_of_a_new_queue_do_not_count_it_twice(server: Server) -> None:
    engine = Engine(server, max_queues=2)
    answers = engine.offer(
        engine.submission(queue="a", delay_seconds=60),
        engine.submission(queue="b"),
        engine.submission(queue="c"),
        engine.submission(queue="a"),
    )
    assert [type(answer) for answer in answers] == [Task, Task, TooManyQueues, Task]


def test_there_are_no_more_queues_than_allowed(server: Server) -> None:
    engine = Engine(server, max_queues=3)
    answers = engine.offer(*[engine.submission(queue=f"q{number}") for number in range(5)])
    assert [type(answer) for answer in answers] == [Task] * 3 + [TooManyQueues] * 2
    before = dump(server)
    assert refused(engine.try_submit(queue="q9", idempotency_key="k"), TooManyQueues).context["retry_after"] == 60
    assert dump(server) == before
    engine.submit(queue="q0")
    dead = engine.fail_for_good(queue="q1")
    with pytest.raises(TooManyQueues):
        engine.requeue(dead, "somebody", queue="q9")
    assert engine.queries.queue_names() == ["q0", "q1", "q2"]


def test_the_wait_that_a_full_queue_names_follows_how_fast_it_has_drained(server: Server) -> None:
    engine = Engine(server)
    keys, clock = engine.keys, server.call("TIME")
    minute, second = divmod(int(clock[0]), 60)
    assert drain_seconds(server, keys, "default", 1000) == 60, "nothing has left it yet"
    server.call("HSET", keys.minute("default", minute), "echo:succeeded", 3, "echo:submitted", 9000)
    assert drain_seconds(server, keys, "default", 10_000) == min(60, -(-100 * max(second, 1) // 3))
    server.call("HSET", keys.minute("default", minute - 1), "a:retried", 6000, "echo:failed", 6000)
    assert drain_seconds(server, keys, "default", 10_000) in (1, 2)
    server.call("HSET", keys.minute("default", minute - 1), "a:retried", 10_000_000)
    assert drain_seconds(server, keys, "default", 10_000) == 1


def test_a_full_queue_is_asked_once_a_batch_how_fast_it_drains(server: Server, flaky_proxy: ProxyFactory) -> None:
    proxy = flaky_proxy(server.safe_url)
    engine = Engine(Server.connect(proxy.url), max_queue_depth=1)
    engine.submit()
    before = len(proxy.commands)
    answers = engine.offer(*[engine.submission()] * 50)
    assert {type(answer) for answer in answers} == {QueueFull}
    assert len(proxy.commands) - before <= 6
    proxy.answer("LOADING not now", matching=b"HGETALL")
    assert refused(engine.try_submit(), QueueFull).context["retry_after"] == 60, "the answer itself is known"
    engine.server.close()


def test_when_redis_goes_away_in_a_large_batch_the_caller_is_told_what_was_accepted(
    server: Server, flaky_proxy: ProxyFactory
) -> None:
    proxy = flaky_proxy(server.safe_url)
    engine = Engine(Server.connect(proxy.url))
    engine.submit()
    script = engine.broker.scripts.script("task_submit").sha.encode()
    marked = engine.submission(payload={"mark": "here"})
    proxy.answer("LOADING not now", matching=b'{"mark":"here"}')
    answers = engine.offer(*[engine.submission()] * 100, marked, *[engine.submission()] * 120)
    assert [type(answer) for answer in answers] == [Task] * 100 + [RedisUnavailable] * 121
    assert engine.queries.counts("default")[S.QUEUED] == 101
    proxy.answer("LOADING not now", matching=script)
    with pytest.raises(RedisUnavailable):
        engine.submit()
    engine.server.close()


# --- memory -----------------------------------------------------------------------------------------------------------


def _fill(server: Server) -> None:
    server.call("CONFIG", "SET", "maxmemory", "100kb")  # less than an empty server uses


def test_redis_08_at_maxmemory_a_submission_is_refused_without_a_trace(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.submit()
    _fill(any_server)
    before = dump(any_server)
    for _ in range(2):  # the guard still believes what it saw a moment ago: the script itself is refused
        with pytest.raises(RedisFull):
            engine.submit(idempotency_key="k")
    fresh = Engine(any_server)
    with pytest.raises(RedisFull) as error:  # and now the guard knows
        fresh.submit(idempotency_key="k")
    assert error.value.context["retry_after"] == 5
    assert dump(any_server) == before
    any_server.call("CONFIG", "SET", "maxmemory", 0)
    engine.submit(idempotency_key="k")


def test_redis_08_at_maxmemory_what_was_accepted_can_be_claimed_kept_and_finished(any_server: Server) -> None:
    engine = Engine(any_server, max_crashes=1)
    worker = engine.register("w1")
    engine.submit_many(12)
    delayed = engine.submit(delay_seconds=60)
    lost = engine.claim("w2", 1)
    running = engine.claim("w1", 3)
    _fill(any_server)
    running += engine.claim("w1", 4)
    assert len(running) == 7
    tick = engine.broker.tick(worker, running)
    assert tick.registered
    assert not tick.lost
    kinds: list[Any] = ["succeed", "retry", "dead", "snooze", "unknown", "cancelled"]
    fields: dict[str, dict[str, Any]] = {"succeed": {"result": b'"done"'}}
    statuses = [
        engine.commit(claim, kind, delay_ms=60_000, **fields.get(kind, {}))
        for claim, kind in zip(running, kinds, strict=False)
    ]
    assert statuses == [S.SUCCEEDED, S.RETRYING, S.DEAD_LETTERED, S.PENDING, S.PENDING, S.CANCELLED]
    assert engine.broker.hand_back("w1", running[6:]) == 1
    assert engine.promote() == 4
    assert engine.task(delayed).status is S.QUEUED
    assert engine.reclaim("w1") == 1, "registering passes too"
    assert engine.task(lost[0].task_id).status is S.QUEUED
    engine.requeue(running[2].task_id, "somebody")
    any_server.call("CONFIG", "SET", "maxmemory", 0)
    done = 0
    while claims := engine.claim("w1"):
        done += len([engine.commit(claim) for claim in claims])
    counts = engine.queries.counts("default")
    assert counts == dict.fromkeys(Status, 0) | {S.SUCCEEDED: 12, S.CANCELLED: 1}
    check_invariants(any_server, engine.keys, engine.settings)


def test_an_evicting_server_is_not_refused_beforehand(server: Server) -> None:
    server.call("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    _fill(server)
    MemoryGuard(server).check()


def test_the_guard_asks_at_most_once_a_second(server: Server, flaky_proxy: ProxyFactory) -> None:
    proxy = flaky_proxy(server.safe_url)
    guard = MemoryGuard(Server.connect(proxy.url))
    for _ in range(50):
        guard.check()
    assert len([one for one in proxy.commands if b"INFO" in one]) == 1


def test_the_guard_believes_a_server_that_does_not_say(server: Server, flaky_proxy: ProxyFactory) -> None:
    """A managed Redis may refuse INFO."""
    proxy = flaky_proxy(server.safe_url)
    for refusal in ("NOPERM this user has no permissions to run the 'info' command", "ERR unknown command 'INFO'"):
        proxy.answer(refusal, matching=b"INFO")
        MemoryGuard(Server.connect(proxy.url)).check()
        assert any(b"INFO" in one for one in proxy.commands)


# --- names from outside -----------------------------------------------------------------------------------------------

STRANGE = [
    "",
    "*",
    "a b",
    "a:b",
    "../x",
    "a\nb",
    "a'b",
    "{x}",
    "ü",
    "\x00",
    "A",
    "-a",
    "a" * 65,
    "x:p5",
    "a\r\nFLUSHALL\r\n",
]


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_queue_name_reaches_no_key(server: Server, name: str) -> None:
    engine = Engine(server)
    dead = engine.fail_for_good()
    before = dump(server)
    with pytest.raises(InvalidTask):
        engine.submission(queue=name)
    with pytest.raises(InvalidTask):
        engine.pause(name, "somebody")
    if name:  # an empty one means the queue that it had
        with pytest.raises(InvalidTask):
            engine.requeue(dead, "somebody", queue=name)
    with pytest.raises(InvalidTask):
        engine.resume(name)
    assert engine.claim("w1", 5, [name]) == []
    assert engine.queries.queue(name).depth == 0
    assert dump(server) == before


@pytest.mark.parametrize("priority", [-1, 10, 55])
def test_a_band_that_there_is_not_takes_no_dead_letter(server: Server, priority: int) -> None:
    engine = Engine(server)
    dead = engine.fail_for_good()
    with pytest.raises(InvalidTask):
        engine.requeue(dead, "somebody", priority=priority)
    assert engine.task(dead).status is S.DEAD_LETTERED


@pytest.mark.parametrize("task_id", ["", "x", "*", "a b", "\x00", "'..redis.call('FLUSHALL')..'", "ü" * 40, "f" * 32])
def test_a_strange_task_id_is_not_found(server: Server, task_id: str) -> None:
    engine = Engine(server)
    engine.submit()
    before = dump(server)
    for look in (engine.queries.task, engine.queries.status, engine.cancel, engine.discard):
        with pytest.raises(TaskNotFound):
            look(task_id)
    with pytest.raises(TaskNotFound):
        engine.requeue(task_id, "somebody")
    assert dump(server) == before


def test_names_and_reasons_of_people_stay_in_one_line_of_the_journal(server: Server) -> None:
    engine = Engine(server)
    engine.cancel(engine.submit(), 'a\tb\nc\x00d "e" \ud800 ' + "long" * 100)
    engine.requeue(engine.fail_for_good(), 'me\n"\t\\', queue="other")
    engine.pause("default", "me\nyou", "why\tnot")
    assert all(len(event) == 7 for event in engine.events())
    cancelled = next(event for event in engine.events() if event[0] == "TASK_CANCELLED")
    assert cancelled[6].startswith('a b c d "e" ? long')
    assert len(cancelled[6]) == 200
    check_invariants(server, engine.keys, engine.settings)


def test_a_flood_of_task_types_does_not_grow_the_counters_without_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtq.limits.MAX_COUNTED_TYPES", 20)
    engine = Engine(server)
    for number in range(90):
        engine.submit(task_type=f"type-{number:02}")
    totals = engine.totals()
    assert len(totals) == 21
    assert totals["_other:submitted"] == 70
    assert totals["type-19:submitted"] == 1
    engine.submit(task_type="type-03")
    engine.submit(task_type="type-33")
    assert engine.totals()["type-03:submitted"] == 2
    assert engine.totals()["_other:submitted"] == 71
    engine.claim()
    assert len(engine.totals()) == 42, "a type that is counted is counted in every respect"
    assert sum(engine.totals().values()) == 2 * 92
    check_invariants(server, engine.keys, engine.settings)


def test_queues_beyond_the_bound_and_forgotten_ones_go_on_being_counted_together(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtq.limits.MAX_COUNTED_QUEUES", 2)
    engine = Engine(server)
    for queue in ("a", "b", "c", "d"):
        engine.cancel(engine.submit(queue=queue))
    assert engine.totals("a") == engine.totals("b") == {"echo:submitted": 1, "echo:cancelled": 1}
    assert engine.totals("c") == engine.totals("d") == {}
    assert engine.totals("_other") == {"_other:submitted": 2, "_other:cancelled": 2}
    server.call("DEL", *[engine.keys.index("a", status) for status in Status])  # its retention is over
    server.call("ZADD", engine.keys.queues(), 1, "a")
    engine.broker.upkeep.sweep()
    assert engine.totals("a") == {}
    assert engine.totals("_other") == {"_other:submitted": 3, "_other:cancelled": 3}
    engine.submit(queue="e")
    assert engine.totals("e") == {"echo:submitted": 1}, "there is room again"
