"""How long things live: what has ended goes with its retention, and what nobody uses any more goes too."""

from __future__ import annotations

import time

import pytest

from dtq.keys import GROUP, LEADER_GROUP
from dtq.redisio import Server
from dtq.states import Status
from dtq.streams import WAKE_KEEP_MS, Doorbell, LeaderBell
from dtq.taskfilter import TaskFilter
from tests.support.dump import dump
from tests.support.engine import Engine, outcome
from tests.support.invariants import check_invariants

S = Status
ENDED = [S.SUCCEEDED, S.FAILED, S.CANCELLED, S.EXPIRED]


def end_retention(engine: Engine, *task_ids: str) -> None:
    """Let these have ended long ago, as the index of the ends tells it."""
    for member in engine.server.call("ZRANGE", engine.keys.finished(), 0, -1):
        if member.split()[0].decode() in task_ids or not task_ids:
            engine.server.call("ZADD", engine.keys.finished(), 1, member)


@pytest.mark.parametrize("status", ENDED)
def test_an_ended_task_goes_with_everything_that_belongs_to_it(any_server: Server, status: Status) -> None:
    engine = Engine(any_server)
    seeded = engine.seed(status, idempotency_key="k")
    if status is S.SUCCEEDED:
        any_server.call("SET", engine.keys.result(seeded.task_id), "1", "PX", 99_999)
    assert engine.broker.upkeep.sweep() == 0
    end_retention(engine)
    assert engine.broker.upkeep.sweep() == 1
    left = [name for name in dump(any_server) if seeded.task_id in name or "index" in name or "idempotency" in name]
    assert left == []
    assert engine.queries.counts(seeded.queue) == dict.fromkeys(Status, 0)
    check_invariants(any_server, engine.keys, engine.settings)


def test_redis_itself_removes_what_no_leader_came_to_remove(server: Server) -> None:
    engine = Engine(server, task_retention_s=10, dlq_enabled=False)
    seeded = engine.seed(S.DEAD_LETTERED)
    assert engine.task(seeded.task_id).status is S.FAILED
    for key in (engine.keys.task, engine.keys.payload, engine.keys.attempts):
        left_ms = server.call("PTTL", key(seeded.task_id))
        assert 3_600_000 < left_ms <= 3_610_000, "an hour after the leader should have"


def test_tasks_that_have_not_ended_and_dead_letters_are_kept_without_end(server: Server) -> None:
    engine = Engine(server, task_retention_s=1, retention_max_tasks=1)
    kept = [engine.seed(status).task_id for status in Status if status not in ENDED]
    assert engine.broker.upkeep.sweep() == 0
    assert all(server.call("PTTL", engine.keys.task(task_id)) == -1 for task_id in kept)


def test_no_more_ended_tasks_are_kept_than_allowed_and_the_oldest_end_goes_first(any_server: Server) -> None:
    engine = Engine(any_server, retention_max_tasks=3)
    seeded = [engine.seed(S.SUCCEEDED, "default").task_id for _ in range(8)]
    for rank, task_id in enumerate(seeded):  # several ends in one millisecond have no order
        any_server.call("ZADD", engine.keys.finished(), "XX", 9e12 + rank, f"{task_id} succeeded default")
    assert [engine.broker.upkeep.sweep(limit=2) for _ in range(4)] == [2, 2, 1, 0]
    kept = {task.task_id for task in engine.queries.tasks(TaskFilter()).tasks}
    assert kept == set(seeded[5:])
    check_invariants(any_server, engine.keys, engine.settings)


def test_thousands_of_ends_are_swept_in_steps(server: Server) -> None:
    engine = Engine(server)
    engine.submit_many(2500)
    while claims := engine.claim():
        engine.broker.commit("w1", [outcome(claim) for claim in claims])
    end_retention(engine)
    assert engine.broker.upkeep.sweep(limit=2000) == 2000
    assert engine.broker.upkeep.sweep(limit=2000) == 500
    assert engine.queries.counts("default")[S.SUCCEEDED] == 0
    check_invariants(server, engine.keys, engine.settings)


def test_a_member_of_the_index_of_ends_that_nobody_understands_goes_alone(server: Server) -> None:
    engine = Engine(server)
    server.call("ZADD", engine.keys.finished(), 1, "something else")
    assert engine.broker.upkeep.sweep() == 1
    assert server.call("ZCARD", engine.keys.finished()) == 0


def test_a_result_has_a_time_of_its_own(server: Server) -> None:
    engine = Engine(server, result_retention_s=60)
    engine.submit()
    claim = engine.claim_one()
    engine.commit(claim, result=b"1")
    assert 59_000 < server.call("PTTL", engine.keys.result(claim.task_id)) <= 60_000


# --- queues -----------------------------------------------------------------------------------------------------------


def idle(engine: Engine, *queues: str) -> None:
    for queue in queues:
        engine.server.call("ZADD", engine.keys.queues(), "XX", 1, queue)


def test_a_queue_that_nobody_has_used_for_a_day_goes_with_its_streams_and_counters(any_server: Server) -> None:
    engine = Engine(any_server)
    seeded = engine.seed(S.SUCCEEDED, "used")
    engine.submit(queue="used", priority=0)
    engine.broker.hand_back("w1", engine.claim("w1", 1, ["used"]))
    engine.cancel(engine.queries.tasks(TaskFilter()).tasks[0].task_id)
    idle(engine, "used")
    engine.broker.upkeep.sweep()
    assert engine.queries.queue_names() == ["used"], "it still has tasks"
    end_retention(engine)
    engine.broker.upkeep.sweep()
    assert engine.queries.queue_names() == ["used"], "it had tasks until now"
    idle(engine, "used")
    engine.broker.upkeep.sweep()
    assert engine.queries.queue_names() == []
    left = [name for name in dump(any_server) if ":used" in name and ":counter:used:" not in name]
    assert left == []
    assert seeded.queue == "used"


def test_a_submission_is_a_use_of_its_queue(server: Server) -> None:
    engine = Engine(server)
    engine.submit(queue="used")
    idle(engine, "used")
    engine.submit(queue="used")
    now = server.call("TIME")
    assert int(now[0]) - 60 < float(server.call("ZSCORE", engine.keys.queues(), "used")) / 1000 <= int(now[0]) + 1


def test_a_queue_that_is_used_or_paused_stays(server: Server) -> None:
    engine = Engine(server)
    for queue in ("fresh", "paused"):
        end_retention(engine, engine.seed(S.SUCCEEDED, queue).task_id)
    engine.pause("paused", "somebody")
    idle(engine, "paused")
    engine.broker.upkeep.sweep()
    assert engine.queries.queue_names() == ["fresh", "paused"]


def test_queues_that_stay_do_not_stand_in_front_of_those_that_can_go(server: Server) -> None:
    engine = Engine(server)
    kept = [engine.seed(S.PENDING, f"kept-{number:02}").queue for number in range(12)]
    gone = [engine.seed(S.SUCCEEDED, f"gone-{number:02}").queue for number in range(3)]
    idle(engine, *kept)
    end_retention(engine)
    for queue in gone:
        server.call("ZADD", engine.keys.queues(), "XX", 2, queue)
    for _ in range(3):
        engine.broker.upkeep.sweep()
    assert engine.queries.queue_names() == kept


def test_the_wake_stream_of_a_queue_that_is_never_used_ends_with_its_waiters(any_server: Server) -> None:
    engine = Engine(any_server)
    bell = Doorbell(any_server, engine.keys, ["never-used"])
    try:
        assert not bell.wait(0.01)
    finally:
        bell.close()
    wake = engine.keys.wake("never-used")
    assert WAKE_KEEP_MS - 10_000 < any_server.call("PTTL", wake) <= WAKE_KEEP_MS
    any_server.call("PEXPIRE", wake, 9999)
    engine.broker.tick(engine.register("w1", queues=["never-used"]), [])
    assert any_server.call("PTTL", wake) > WAKE_KEEP_MS - 10_000, "a worker still waits on it"
    engine.resume("never-paused", "somebody")
    engine.pause("never-used-either", "somebody")
    engine.resume("never-used-either", "somebody")
    check_invariants(any_server, engine.keys, engine.settings)


def test_the_leaders_wake_stream_stays(server: Server) -> None:
    engine = Engine(server)
    bell = LeaderBell(server, engine.keys)
    try:
        assert not bell.wait(0.01)
    finally:
        bell.close()
    assert server.call("PTTL", engine.keys.scheduler_wake()) == -1
    groups = server.call("XINFO", "GROUPS", engine.keys.scheduler_wake())
    assert LEADER_GROUP.encode() in groups[0]


# --- workers ----------------------------------------------------------------------------------------------------------


def _consumers(engine: Engine, queue: str = "default") -> list[str]:
    rows = engine.server.call("XINFO", "CONSUMERS", engine.keys.stream(queue, 5), GROUP)
    return sorted(dict(zip(row[::2], row[1::2], strict=True))[b"name"].decode() for row in rows)


@pytest.mark.usefixtures("bounded_keys")
def test_a_worker_whose_heartbeats_stopped_is_removed_once_its_tasks_were_taken_back(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.register("dead", lease_s=0.001)
    engine.register("alive", lease_s=0.001)
    engine.submit_many(2)
    assert engine.broker.tick(engine.worker("dead"), []).leader
    engine.claim_one("dead")
    any_server.pipeline([("ZADD", engine.keys.workers(), 1, "dead"), ("DEL", engine.keys.worker("dead"))])
    engine.broker.upkeep.sweep()
    assert "dead" in _consumers(engine), "removing the consumer would drop what is pending"
    assert any_server.call("ZSCORE", engine.keys.leases(), "dead") == b"1"
    time.sleep(0.003)
    assert engine.take_back() == 1
    engine.broker.upkeep.sweep()
    assert "dead" not in _consumers(engine)
    assert [worker.worker_id for worker in engine.queries.workers()] == ["alive"]
    assert any_server.call("ZSCORE", engine.keys.leases(), "dead") is None
    assert engine.queries.leader() is None, "so that another one can lead at once"
    assert [event[5] for event in engine.events() if event[0] == "WORKER_STALE"] == ["dead"]


@pytest.mark.usefixtures("bounded_keys")
def test_a_worker_that_leaves_takes_its_record_its_lock_and_its_consumers_along(any_server: Server) -> None:
    engine = Engine(any_server)
    worker = engine.register("w1")
    engine.submit()
    engine.commit(engine.claim_one())
    assert engine.broker.tick(worker, []).leader
    tokens = any_server.call("XLEN", engine.keys.scheduler_wake())
    engine.broker.deregister("w1", ["default", "never-used"])
    assert engine.queries.workers() == []
    assert engine.queries.leader() is None
    assert any_server.call("XLEN", engine.keys.scheduler_wake()) == tokens + 1
    assert any_server.call("EXISTS", engine.keys.workers(), engine.keys.leases(), engine.keys.worker("w1")) == 0
    engine.broker.deregister("w1")
    kinds = [event[0] for event in engine.events() if event[0].startswith("WORKER_")]
    assert kinds == ["WORKER_STARTED", "WORKER_STOPPED"]


def test_a_worker_is_not_removed_by_one_that_believed_it_dead_too_early(server: Server) -> None:
    engine = Engine(server)
    engine.register("w1")
    engine.broker.scripts.run("worker_leave", worker="w1", gone="1")
    assert [worker.worker_id for worker in engine.queries.workers()] == ["w1"]


def test_a_tick_of_a_worker_whose_record_is_gone_asks_it_to_register_again(any_server: Server) -> None:
    engine = Engine(any_server)
    worker = engine.register("w1")
    assert engine.broker.tick(worker, []).registered
    any_server.call("DEL", engine.keys.worker("w1"))
    assert not engine.broker.tick(worker, []).registered
    assert any_server.call("EXISTS", engine.keys.worker("w1")) == 0, "half a record would live for ever"


def test_a_worker_record_lives_for_three_heartbeats_and_never_less_than_its_lease(server: Server) -> None:
    engine = Engine(server, heartbeat_interval_s=2)
    for lease_s, keep_ms in ((0.5, 6000), (30, 30_000)):
        engine.register("w1", lease_s=lease_s)
        assert keep_ms - 500 < server.call("PTTL", engine.keys.worker("w1")) <= keep_ms


def test_a_worker_that_comes_back_under_its_name_is_not_told_old_commands(server: Server) -> None:
    engine = Engine(server)
    worker = engine.register("w1")
    server.call("HSET", engine.keys.worker("w1"), "command", "stop")
    assert engine.broker.tick(worker, []).command == "stop"
    assert engine.broker.tick(engine.register("w1"), []).command is None


@pytest.mark.usefixtures("bounded_keys")
def test_one_leads_until_it_resigns_or_stays_silent(any_server: Server) -> None:
    engine = Engine(any_server)
    one, other = engine.register("one"), engine.register("other")
    assert not engine.broker.tick(one, [], lead=False).leader
    assert engine.broker.tick(one, []).leader
    assert not engine.broker.tick(other, []).leader
    assert engine.broker.tick(one, []).leader, "it keeps the lock"
    assert 9_000 < any_server.call("PTTL", engine.keys.scheduler_lock()) <= 10_000
    engine.broker.resign("other")
    assert engine.queries.leader() == "one"
    engine.broker.resign("one")
    assert engine.broker.tick(other, []).leader
