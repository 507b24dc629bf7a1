"""Tasks whose record and place have come apart are found and put back, and nothing else is touched."""

from __future__ import annotations

import pytest

from dtq.broker import Replay
from dtq.keys import GROUP, PARKED
from dtq.redisio import Server
from dtq.states import Disposition, Status
from dtq.streams import Doorbell
from tests.support.dump import dump
from tests.support.engine import Engine
from tests.support.invariants import check_invariants

S = Status


@pytest.mark.parametrize("status", [S.PENDING, S.QUEUED, S.RUNNING, S.RETRYING])
def test_claim_27_tasks_that_lost_their_place_are_put_back_and_counted(any_server: Server, status: Status) -> None:
    engine = Engine(any_server)
    seeded = [engine.seed(status, "default") for _ in range(10)]
    any_server.call("DEL", engine.keys.stream("default", 5), engine.keys.schedule(), engine.keys.worker("w1"))
    assert engine.reconcile_all() == 10
    assert engine.totals()["echo:reconciled"] == 10
    check_invariants(any_server, engine.keys, engine.settings)
    assert engine.reconcile_all() == 0
    expected = status if status in (S.PENDING, S.RETRYING) else S.QUEUED
    for one in seeded:
        assert engine.task(one.task_id).status is expected
        assert ["TASK_QUEUED", "reconciled"] in [
            [event[0], event[6]] for event in engine.events() if event[1] == one.task_id
        ]


def test_claim_27_the_lost_attempt_of_a_running_task_is_in_its_history(any_server: Server) -> None:
    engine = Engine(any_server)
    seeded = engine.seed(S.RUNNING, "default")
    any_server.call("DEL", engine.keys.stream("default", 5))
    assert engine.reconcile_all() == 1
    task = engine.task(seeded.task_id)
    assert (task.attempt, task.worker_id, task.started_at) == (1, None, None)
    assert [(one.number, one.worker_id, one.outcome) for one in task.attempts] == [(1, "w1", Disposition.LOST)]
    assert seeded.claim is not None
    assert engine.commit(seeded.claim) is None, "its former owner is fenced off"
    assert engine.claim_one().attempt == 2


def test_a_running_task_without_its_ticket_is_left_to_a_worker_that_is_alive(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.register("w1")
    gone, unacknowledged = engine.seed(S.RUNNING, "a"), engine.seed(S.RUNNING, "b")
    any_server.call("DEL", engine.keys.stream("a", 5))
    any_server.call("XACK", engine.keys.stream("b", 5), GROUP, engine.pending("b")[0][0])
    assert engine.reconcile_all() == 0
    for seeded in (gone, unacknowledged):
        assert seeded.claim is not None
        assert engine.commit(seeded.claim) is S.SUCCEEDED
    check_invariants(any_server, engine.keys, engine.settings)


def test_a_running_task_whose_entry_nobody_holds_any_more_is_queued_anew(any_server: Server) -> None:
    engine = Engine(any_server)
    seeded = engine.seed(S.RUNNING, "default")
    any_server.call("XACK", engine.keys.stream("default", 5), GROUP, engine.pending()[0][0])
    assert engine.reconcile_all() == 1
    check_invariants(any_server, engine.keys, engine.settings)
    assert engine.claim_one().task_id == seeded.task_id


def test_a_running_task_whose_group_is_gone_is_queued_anew(any_server: Server) -> None:
    engine = Engine(any_server)
    seeded = engine.seed(S.RUNNING, "default")
    any_server.call("XGROUP", "DESTROY", engine.keys.stream("default", 5), GROUP)
    assert engine.reconcile_all() == 1
    assert engine.claim_one().task_id == seeded.task_id


def test_a_task_whose_cancellation_was_asked_for_is_cancelled_and_not_run_again(any_server: Server) -> None:
    engine = Engine(any_server)
    seeded = engine.seed(S.RUNNING, "default")
    engine.cancel(seeded.task_id)
    any_server.call("DEL", engine.keys.stream("default", 5))
    assert engine.reconcile_all() == 1
    assert engine.task(seeded.task_id).status is S.CANCELLED
    check_invariants(any_server, engine.keys, engine.settings)
    assert seeded.claim is not None
    assert engine.commit(seeded.claim) is None


def test_a_due_time_that_was_lost_is_taken_from_the_record(server: Server) -> None:
    engine = Engine(server)
    task_id = engine.submit(delay_seconds=600)
    due = server.call("ZSCORE", engine.keys.schedule(), task_id)
    server.call("DEL", engine.keys.schedule())
    assert engine.reconcile_all() == 1
    assert server.call("ZSCORE", engine.keys.schedule(), task_id) == due


def test_index_entries_of_tasks_that_are_elsewhere_or_gone_are_set_right(any_server: Server) -> None:
    engine = Engine(any_server)
    moved = engine.seed(S.SUCCEEDED, "default").task_id
    other = engine.seed(S.QUEUED, "other").task_id
    gone = engine.seed(S.QUEUED, "default").task_id
    created = engine.field(moved, "created") or ""
    queued = engine.keys.index("default", "queued")
    any_server.pipeline(
        [
            ("ZADD", queued, created, moved),
            ("ZADD", queued, 1, other),
            ("ZADD", queued, 1, "f" * 32),
            ("ZREM", engine.keys.index("other", "queued"), other),
            ("DEL", engine.keys.task(gone), engine.keys.stream("default", 5)),
            ("RPUSH", engine.keys.attempts(gone), "{}"),
        ]
    )
    assert engine.reconcile_all() == 0, "no task had lost its place"
    check_invariants(any_server, engine.keys, engine.settings)
    assert not [name for name in dump(any_server) if gone in name]


@pytest.mark.parametrize("status", [S.PENDING, S.QUEUED, S.RUNNING, S.RETRYING])
def test_a_record_that_cannot_be_read_becomes_a_dead_letter(any_server: Server, status: Status) -> None:
    engine = Engine(any_server)
    bad, good = engine.seed(status, "default").task_id, engine.seed(status, "default").task_id
    any_server.call("HDEL", engine.keys.task(bad), "seq")
    assert engine.reconcile_all() == 1
    task = engine.task(bad)
    assert (task.status, task.reason) == (S.DEAD_LETTERED, "undecodable")
    assert engine.task(good).status is status
    check_invariants(any_server, engine.keys, engine.settings)


def test_a_record_of_a_newer_dtq_is_left_alone(any_server: Server) -> None:
    engine = Engine(any_server)
    for status in (S.PENDING, S.QUEUED, S.RUNNING, S.RETRYING):
        any_server.call("HSET", engine.keys.task(engine.seed(status, "default").task_id), "v", 2)
    any_server.call("DEL", engine.keys.stream("default", 5), engine.keys.schedule())
    before = dump(any_server)
    assert engine.reconcile_all() == 0
    assert dump(any_server) == before


def test_a_round_looks_at_every_task_once_in_steps(server: Server) -> None:
    engine = Engine(server)
    for queue in ("a", "b"):
        engine.submit_many(25, queue=queue)
        engine.submit_many(5, queue=queue, delay_seconds=60)
    upkeep = engine.broker.upkeep
    looked = [upkeep.reconcile(limit=10)]
    while not looked[-1].finished_round:
        looked.append(upkeep.reconcile(limit=10))
    assert sum(step.looked_at for step in looked) == 60
    assert 4 <= len(looked) <= 6
    assert max(step.looked_at for step in looked) < 20


def test_a_round_over_nothing_ends_at_once(server: Server) -> None:
    assert Engine(server).broker.upkeep.reconcile() == (0, 0, True)


def test_what_was_repaired_does_not_make_the_round_pass_over_others(server: Server) -> None:
    engine = Engine(server)
    for _ in range(30):
        engine.seed(S.RUNNING, "default")
    engine.submit_many(30)
    server.call("DEL", engine.keys.stream("default", 5))
    upkeep = engine.broker.upkeep
    repaired, rounds = 0, 0
    while rounds < 2:
        step = upkeep.reconcile(limit=7)
        repaired, rounds = repaired + step.repaired, rounds + step.finished_round
    assert repaired == 60
    check_invariants(server, engine.keys, engine.settings)


@pytest.mark.parametrize("loss", ["acknowledged by hand", "its consumer was deleted by hand"])
def test_claim_27_a_ticket_that_stands_but_would_never_be_given_out_again_is_made_anew(
    any_server: Server, loss: str
) -> None:
    """Neither unread nor pending: the task would wait for ever behind what the group has read already."""
    engine = Engine(any_server)
    engine.submit_many(3)
    stream = engine.keys.stream("default", 5)
    (parked, kept) = engine.claim("w1", 2)
    engine.broker.hand_back("w1", [parked])
    if loss == "acknowledged by hand":
        any_server.call("XACK", stream, GROUP, engine.field(parked.task_id, "entry") or "")
    else:
        any_server.call("XGROUP", "DELCONSUMER", stream, GROUP, PARKED)
    assert engine.reconcile_all() == 1
    check_invariants(any_server, engine.keys, engine.settings)
    assert [claim.task_id for claim in engine.claim()][-1] == parked.task_id, "at the tail: its place was lost"
    assert engine.commit(kept) is S.SUCCEEDED


def test_what_waits_where_nobody_claims_expires_in_time_too(any_server: Server) -> None:
    """A queue that no worker serves, or that is paused, has no claim that would look at the time to live."""
    engine = Engine(any_server)
    mortal = {"metadata": {"ttl_seconds": 60}}
    passed = engine.submit(queue="unserved", idempotency_key="k", **mortal)
    others = [engine.submit(queue="unserved", **mortal), engine.submit(queue="unserved")]
    parked = engine.submit(queue="served", **mortal)
    assert engine.broker.hand_back("w1", engine.claim("w1", 1, ["served"])) == 1
    running = engine.submit(queue="busy", **mortal)
    engine.claim("w1", 1, ["busy"])
    for task_id in (passed, parked, running):
        engine.let_ttl_pass(task_id)
    assert engine.reconcile_all() == 0, "an end is no repair"
    assert [engine.task(one).status for one in (passed, parked, running)] == [S.EXPIRED, S.EXPIRED, S.RUNNING]
    assert {engine.task(one).status for one in others} == {S.QUEUED}
    assert engine.kinds(passed) == ["TASK_QUEUED", "TASK_EXPIRED"]
    assert engine.totals("unserved")["echo:expired"] == 1
    check_invariants(any_server, engine.keys, engine.settings)
    again = engine.try_submit(queue="unserved", idempotency_key="k", **mortal)
    assert isinstance(again, Replay)


# --- noticing it ------------------------------------------------------------------------------------------------------


def test_a_loss_is_noticed_from_the_counts_and_looked_for_first(any_server: Server) -> None:
    """A round over everything may take long; a stream that was deleted by hand is missed within two seconds."""
    engine = Engine(any_server)
    for name in ("a", "b", "c"):
        engine.submit_many(300, queue=name, priority=3)
    upkeep = engine.broker.upkeep
    assert not upkeep.check()
    upkeep.reconcile(limit=10)
    any_server.call("DEL", engine.keys.stream("c", 3))
    assert upkeep.check()
    assert not upkeep.check(), "once is enough"
    assert [upkeep.reconcile(limit=200).repaired for _ in range(2)] == [200, 100]
    any_server.call("DEL", engine.keys.stream("c", 3))
    assert upkeep.check()
    assert upkeep.reconcile(limit=200).repaired == 200
    assert not upkeep.check(), "it is being looked for"
    assert upkeep.reconcile(limit=200).repaired == 100
    check_invariants(any_server, engine.keys, engine.settings)


@pytest.mark.parametrize("status", [S.PENDING, S.RETRYING])
def test_a_schedule_that_is_gone_is_noticed_too(any_server: Server, status: Status) -> None:
    engine = Engine(any_server)
    for _ in range(3):
        engine.seed(status)
    any_server.call("DEL", engine.keys.schedule())
    assert engine.broker.upkeep.check()
    repaired = 0
    for _ in range(3):
        repaired += engine.broker.upkeep.reconcile().repaired
    assert repaired == 3
    assert not engine.broker.upkeep.check()


def test_what_a_living_worker_runs_without_its_ticket_is_not_looked_for_again_and_again(server: Server) -> None:
    engine = Engine(server)
    engine.register("w1")
    engine.submit_many(3)
    claims = engine.claim("w1", 2)
    server.call("DEL", engine.keys.stream("default", 5))
    upkeep = engine.broker.upkeep
    assert upkeep.check()
    assert engine.reconcile_all() == 1
    assert not upkeep.check()
    engine.commit(claims[0])
    assert not upkeep.check()
    server.call("DEL", engine.keys.stream("default", 5))
    assert upkeep.check(), "one more than before"


def test_work_that_waits_is_rung_for_again_unless_its_queue_is_paused(any_server: Server) -> None:
    """Its token may have been lost with the worker that took it."""
    engine = Engine(any_server)
    bell = Doorbell(any_server, engine.keys, ["default"])
    engine.submit()
    assert bell.wait(1)
    assert not bell.wait(0.01)
    engine.broker.upkeep.check()
    assert bell.wait(1)
    engine.pause("default")
    engine.broker.upkeep.check()
    assert not bell.wait(0.01)
    bell.close()
