"""What becomes of tasks whose worker was lost: who may take them, when, and which of them is to blame."""

from __future__ import annotations

import time
from typing import cast

import pytest

from dtq.keys import GROUP, PARKED
from dtq.model import Claim
from dtq.redisio import Server
from dtq.serverinfo import QuietTime
from dtq.states import Disposition, Status
from tests.conftest import ServerFactory
from tests.support.dump import dump
from tests.support.engine import Engine, outcome
from tests.support.invariants import check_invariants
from tests.support.servers import ServerProcess

S = Status


def ids(claims: list[Claim]) -> list[str]:
    return [claim.task_id for claim in claims]


def test_claim_04_tasks_of_a_worker_that_never_comes_back_are_run_by_another(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.register("gone")
    engine.register("here")
    lost = engine.submit_many(3)
    assert ids(engine.claim("gone", 3)) == lost
    assert engine.take_back() == 0, "the lease has not ended"
    assert engine.reclaim("gone", "here") == 3
    again = []
    while claims := engine.claim("here"):
        again += claims
    assert ids(again) == lost, "in their old places"
    assert {claim.attempt for claim in again} == {2}
    assert {engine.commit(claim, worker_id="here") for claim in again} == {S.SUCCEEDED}
    check_invariants(any_server, engine.keys, engine.settings)


def test_life_13_a_lost_worker_uses_up_no_attempt(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.register("w1")
    task_id = engine.submit(max_attempts=1)
    engine.claim_one()
    engine.reclaim()
    task = engine.task(task_id)
    assert (task.status, task.attempt, task.failures, task.crashes) == (S.QUEUED, 1, 0, 0)
    assert [(attempt.number, attempt.worker_id, attempt.outcome) for attempt in task.attempts] == [
        (1, "w1", Disposition.LOST)
    ]
    again = engine.claim_one("w2")
    assert (again.attempt, again.suspect) == (2, 1)
    assert engine.commit(again, worker_id="w2") is S.SUCCEEDED


def test_claim_24_a_worker_that_lost_its_lease_changes_nothing_any_more(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.register("a")
    task_id = engine.submit()
    stale = engine.claim_one("a")
    engine.reclaim("a", "b")
    fresh = engine.claim_one("b")
    before = dump(any_server)
    for kind in ("succeed", "retry", "dead", "snooze", "unknown", "cancelled"):
        assert engine.commit(stale, kind, worker_id="a", result=b'"of a"') is None
    assert engine.broker.hand_back("a", [stale]) == 0
    assert not engine.broker.start_suspect("a", stale, alone=True)
    assert not engine.broker.progress("a", stale, 0.9, "nearly")
    assert dump(any_server) == before
    tick = engine.broker.tick(engine.worker("a"), [stale])
    assert tick.lost == {task_id}
    assert engine.pending()[0][1] == "b", "renewing steals nothing back"
    assert engine.commit(fresh, worker_id="b", result=b'"of b"') is S.SUCCEEDED
    assert engine.commit(stale, worker_id="a", result=b'"of a"') is None
    assert (engine.task(task_id).result, engine.task(task_id).worker_id) == ("of b", "b")


def test_claim_24_the_owner_of_a_task_that_was_given_up_hears_that_it_lost_it(any_server: Server) -> None:
    """Poisoned or cancelled for want of its owner: who comes late must not believe that its outcome was recorded."""
    engine = Engine(any_server, max_crashes=1)
    engine.register("a")
    poison, unwanted = engine.submit_many(2)
    engine.claim("a")
    engine.reclaim("a")
    first = engine.claim_one("a")
    engine.broker.start_suspect("a", first, alone=True)
    second = engine.claim_one("a")
    engine.cancel(unwanted)
    assert engine.reclaim("a") == 2
    assert [engine.task(task_id).status for task_id in (poison, unwanted)] == [S.DEAD_LETTERED, S.CANCELLED]
    assert [engine.commit(claim, worker_id="a") for claim in (first, second)] == [None, None]
    assert engine.broker.hand_back("a", [first, second]) == 0
    check_invariants(any_server, engine.keys, engine.settings)


def test_poison_01_a_task_that_kills_its_workers_is_found_and_its_neighbours_pay_nothing(any_server: Server) -> None:
    engine = Engine(any_server, max_crashes=3)
    engine.register("w1")
    innocent = engine.submit_many(15)
    poison = engine.submit(task_type="poison")
    innocent += engine.submit_many(15)
    assert len(engine.claim("w1")) == 31
    crashes = 1
    engine.reclaim()
    done: list[str] = []
    while claims := engine.claim("w1"):
        (claim,) = claims
        assert claim.suspect == 1
        assert engine.broker.start_suspect("w1", claim, alone=True)
        if claim.task_id == poison:
            crashes += 1
            engine.reclaim()
        else:
            assert engine.commit(claim) is S.SUCCEEDED
            done.append(claim.task_id)
    assert done == innocent
    assert crashes == 4, "once as one of many, three times by itself"
    assert {engine.task(task_id).crashes for task_id in innocent} == {0}
    dead = engine.task(poison)
    assert (dead.status, dead.reason, dead.crashes, dead.failures) == (S.DEAD_LETTERED, "worker_crashed", 3, 0)
    assert [attempt.outcome for attempt in dead.attempts] == [Disposition.LOST] * 4
    assert dead.error is not None
    assert dead.error["class"] == "WorkerCrashed"
    check_invariants(any_server, engine.keys, engine.settings)


def test_a_suspect_that_ran_beside_others_is_only_run_alone_next(server: Server) -> None:
    engine = Engine(server, max_crashes=1)
    engine.register("w1")
    task_id = engine.submit()
    engine.claim_one()
    engine.reclaim()
    engine.broker.start_suspect("w1", engine.claim_one(), alone=False)
    engine.reclaim()
    claim = engine.claim_one()
    assert (claim.suspect, engine.task(task_id).crashes) == (2, 0)
    engine.reclaim()
    claim = engine.claim_one()
    assert (claim.suspect, engine.task(task_id).crashes) == (2, 0), "it had not started"
    assert engine.broker.start_suspect("w1", claim, alone=True)
    assert engine.broker.start_suspect("w1", claim, alone=False), "withdrawn: something else was started beside it"
    engine.reclaim()
    engine.broker.start_suspect("w1", engine.claim_one(), alone=True)
    engine.reclaim()
    assert engine.task(task_id).status is S.DEAD_LETTERED


def test_a_suspect_that_fails_as_tasks_fail_stays_a_suspect_until_it_is_requeued(server: Server) -> None:
    engine = Engine(server)
    engine.register("w1")
    task_id = engine.submit()
    engine.claim_one()
    engine.reclaim()
    engine.commit(engine.claim_one(), "retry", delay_ms=1000)
    engine.promote()
    again = engine.claim_one()
    assert again.suspect == 1
    engine.commit(again, "dead")
    engine.requeue(task_id, "somebody")
    assert engine.claim_one().suspect == 0


def test_a_cancelled_task_of_a_lost_worker_is_cancelled(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.register("w1")
    task_id = engine.submit()
    engine.claim_one()
    engine.cancel(task_id, "not wanted")
    assert engine.reclaim() == 1
    task = engine.task(task_id)
    assert (task.status, task.reason, len(task.attempts)) == (S.CANCELLED, "not wanted", 1)
    check_invariants(any_server, engine.keys, engine.settings)


def test_claim_07_entries_that_were_deleted_are_cleared_away_and_the_rest_is_run(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.register("w1")
    stream = engine.keys.stream("default", 5)
    engine.submit_many(3)
    engine.claim()
    entries = [entry for entry, _ in engine.pending()]
    any_server.call("XDEL", stream, *entries[:2])
    assert engine.reclaim() == 1
    assert engine.pending() == [(entries[2], PARKED)]
    assert engine.totals()["_unknown:claim_deleted"] == 2
    assert len(engine.claim("w2")) == 1
    any_server.call("DEL", engine.keys.worker("w1"))
    assert engine.reconcile_all() == 2, "their tasks are not lost either"
    check_invariants(any_server, engine.keys, engine.settings)


def test_claim_07_a_parked_entry_that_was_deleted_is_passed_over(any_server: Server) -> None:
    engine = Engine(any_server)
    bad, good = engine.submit_many(2)
    engine.broker.hand_back("w1", engine.claim())
    any_server.call("XDEL", engine.keys.stream("default", 5), engine.field(bad, "entry") or "")
    assert ids(engine.claim()) == [good]
    assert len(engine.pending()) == 1
    assert engine.reconcile_all() == 1
    assert ids(engine.claim()) == [bad]


def test_a_ticket_that_is_gone_when_its_task_is_handed_back_is_made_anew(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.submit()
    claim = engine.claim_one()
    any_server.call("DEL", engine.keys.stream("default", 5))
    assert engine.broker.hand_back("w1", [claim]) == 1
    check_invariants(any_server, engine.keys, engine.settings)
    again = engine.claim_one()
    assert (again.attempt, again.seq) == (1, 4)


def test_tickets_that_a_claim_took_and_did_not_finish_are_put_back(any_server: Server) -> None:
    """As after a script that was ended in the middle: pending under a worker, but the record says queued."""
    engine = Engine(any_server)
    engine.register("w1")
    stream = engine.keys.stream("default", 5)
    ghost = engine.submit()
    any_server.call("XGROUP", "CREATE", stream, GROUP, 0)
    any_server.call("XADD", stream, "*", "id", ghost)
    any_server.call("XADD", stream, "*", "junk", 1)
    assert len(any_server.call("XREADGROUP", "GROUP", GROUP, "w1", "STREAMS", stream, ">")[0][1]) == 3
    engine.end_leases()
    assert engine.take_back() == 0, "nothing ran"
    assert engine.pending() == [(engine.field(ghost, "entry"), PARKED)]
    assert ids(engine.claim("w2")) == [ghost]
    check_invariants(any_server, engine.keys, engine.settings)


def test_settling_finds_what_it_does_not_hold_behind_hundreds_that_it_holds(server: Server) -> None:
    engine = Engine(server)
    engine.submit_many(350)
    claims = [claim for _ in range(4) for claim in engine.claim("w1", 100)]
    any_ticket = engine.keys.stream("default", 5)
    server.call("XADD", any_ticket, "*", "junk", 1)
    server.call("XREADGROUP", "GROUP", GROUP, "w1", "STREAMS", any_ticket, ">")
    held = ids(claims)[:-3]
    assert engine.broker.settle("w1", ["default", "never-used"], held) == 3
    assert ids(engine.claim("w2")) == ids(claims)[-3:]
    check_invariants(server, engine.keys, engine.settings)


def test_settling_puts_back_what_is_queued_and_removes_what_stands_for_nothing(server: Server) -> None:
    engine = Engine(server)
    stream = engine.keys.stream("default", 5)
    ghost, finished = engine.submit_many(2)
    server.call("XGROUP", "CREATE", stream, GROUP, 0)
    server.call("XREADGROUP", "GROUP", GROUP, "w1", "STREAMS", stream, ">")
    server.call("HSET", engine.keys.task(finished), "status", "succeeded")
    assert engine.broker.settle("w1", ["default"], []) == 0
    assert engine.pending() == [(engine.field(ghost, "entry"), PARKED)]
    assert engine.depth() == 1


# --- when -------------------------------------------------------------------------------------------------------------


def test_nothing_is_taken_before_the_longest_lease_that_any_worker_has_published(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.register("short", lease_s=0.001)
    engine.register("long", lease_s=60)
    engine.submit()
    engine.claim_one("short")
    time.sleep(0.005)
    assert engine.take_back() == 0
    engine.broker.deregister("long")
    assert engine.take_back() == 1


def test_nothing_is_taken_while_no_worker_has_published_a_lease(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.submit()
    engine.claim_one()
    time.sleep(0.005)
    assert engine.take_back() == 0


def test_renewing_keeps_a_lease_and_leaves_the_delivery_count_alone(any_server: Server) -> None:
    """CLAIM-01: the renewal of a large payload answers little and counts as no delivery."""
    engine = Engine(any_server)
    worker = engine.register("w1")
    engine.submit(payload={"text": "x" * 200_000})
    claim = engine.claim_one()
    time.sleep(0.6)
    engine.broker.tick(worker, [claim])
    engine.register("w1", lease_s=0.5)
    assert engine.take_back() == 0
    (row,) = any_server.call("XPENDING", engine.keys.stream("default", 5), GROUP, "-", "+", 10)
    assert row[3] == 1


def test_others_take_only_what_is_late(server: Server) -> None:
    engine = Engine(server)
    engine.register("w1", lease_s=0.001)
    engine.submit()
    engine.claim_one()
    time.sleep(0.005)
    assert engine.take_back(late_ms=60_000) == 0
    assert engine.take_back(late_ms=1) == 1


def test_a_worker_hears_that_something_is_overdue_even_behind_what_is_parked_for_long(
    any_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(any_server)
    engine.register("w1", lease_s=0.001)
    engine.submit_many(3)
    claims = engine.claim("w1", 3)
    engine.broker.hand_back("w1", claims[:2])
    worker = engine.worker("w2", queues=("never-used", "default"))

    def overdue() -> bool:
        return engine.broker.tick(worker, [], lead=False).overdue

    time.sleep(0.005)
    assert not overdue(), "it has ended, but the leader has a second to find it"
    monkeypatch.setattr("dtq.broker.OVERDUE_MS", 1)
    assert overdue()
    assert engine.take_back() == 1
    assert not overdue()
    engine.submit(delay_seconds=0.001)
    time.sleep(0.01)
    assert overdue()
    engine.broker.upkeep.promote()
    assert not overdue()


def test_the_leader_is_told_at_once_of_any_queue_and_its_scheduler_is_rung(any_server: Server) -> None:
    engine = Engine(any_server)
    leader = engine.register("w1", lease_s=0.001)
    engine.submit(queue="another")
    engine.claim_one("w2", "another")
    time.sleep(0.005)
    tick = engine.broker.tick(leader, [])
    assert (tick.leader, tick.overdue, tick.busy) == (True, True, True)
    assert any_server.call("XLEN", engine.keys.scheduler_wake()) == 1
    assert engine.take_back() == 1
    tick = engine.broker.tick(leader, [])
    assert (tick.leader, tick.overdue, tick.busy) == (True, False, False)
    assert any_server.call("XLEN", engine.keys.scheduler_wake()) == 1


def test_after_an_outage_nothing_is_taken_before_owners_could_renew(server_factory: ServerFactory) -> None:
    process: ServerProcess = server_factory("valkey", aof=True)
    engine = Engine(Server.connect(process.url))
    engine.register("w1", lease_s=0.6)
    engine.submit()
    claim = engine.claim_one()
    assert claim.attempt == 1
    engine.server.call("CONFIG", "SET", "appendfsync", "always")
    engine.server.call("SET", "synced", 1)
    time.sleep(0.7)
    process.restart()
    engine.register("w1", lease_s=0.6)
    assert engine.broker.upkeep.reclaim() == 0, "the server has been up for less than a third of the lease"
    began = time.monotonic()
    while engine.broker.upkeep.reclaim() == 0:
        assert time.monotonic() - began < 5
        time.sleep(0.01)
    assert time.monotonic() - began > 0.05
    engine.server.close()


def test_a_consumer_of_a_worker_that_nobody_remembers_is_forgotten_with_its_last_entry(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.register("here", lease_s=0.001)
    engine.submit_many(2)
    engine.claim_one("stranger")
    engine.claim_one("here")
    time.sleep(0.003)
    assert engine.take_back() == 2
    consumers = any_server.call("XINFO", "CONSUMERS", engine.keys.stream("default", 5), GROUP)
    assert sorted(dict(zip(row[::2], row[1::2], strict=True))[b"name"] for row in consumers) == [
        PARKED.encode(),
        b"here",
    ]


def test_parked_bands_are_found_again_when_the_note_of_them_was_lost(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.register("w1")
    task_id = engine.submit()
    engine.broker.hand_back("w1", engine.claim())
    any_server.call("DEL", engine.keys.parked("default"))
    assert engine.claim() == []
    engine.reclaim()
    assert ids(engine.claim()) == [task_id]


def test_a_reclaim_is_bounded_and_goes_on_where_it_stopped(server: Server) -> None:
    engine = Engine(server)
    engine.register("w1", lease_s=0.001)
    for queue in ("a", "b"):
        engine.submit_many(30, queue=queue)
        engine.claim("w1", 100, [queue])
    time.sleep(0.003)
    assert [engine.take_back(limit=25) for _ in range(3)] == [25, 25, 10]
    assert engine.take_back() == 0
    check_invariants(server, engine.keys, engine.settings)


def test_a_record_that_cannot_be_read_does_not_stop_the_others_from_being_taken_back(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.register("w1")
    bad, good = engine.submit_many(2)
    engine.claim()
    any_server.call("HSET", engine.keys.task(bad), "attempt", "many")
    assert engine.reclaim() == 2
    assert (engine.task(bad).status, engine.task(bad).reason) == (S.DEAD_LETTERED, "undecodable")
    assert ids(engine.claim("w2")) == [good]
    check_invariants(any_server, engine.keys, engine.settings)


def test_the_history_keeps_the_last_fifty_attempts(server: Server) -> None:
    engine = Engine(server)
    engine.register("w1")
    task_id = engine.submit()
    for _ in range(55):
        engine.commit(engine.claim_one(), "retry", delay_ms=0)
        engine.promote()
    task = engine.task(task_id)
    assert [attempt.number for attempt in task.attempts] == list(range(6, 56))
    assert (task.attempt, task.failures) == (55, 55)


def test_a_seq_that_was_given_twice_fences_by_its_worker_too(server: Server) -> None:
    """A server that lost its last writes, or a restored backup, gives the same seq to two workers."""
    engine = Engine(server)
    worker = engine.register("w1")
    engine.submit()
    claim = engine.claim_one()
    server.call("HSET", engine.keys.task(claim.task_id), "worker", "w2")
    assert engine.broker.commit("w1", [outcome(claim, "succeed")]) == [None]
    assert engine.broker.hand_back("w1", [claim]) == 0
    assert not engine.broker.progress("w1", claim, 0.5, "half")
    assert not engine.broker.start_suspect("w1", claim, True)
    assert engine.broker.tick(worker, [claim]).lost == {claim.task_id}
    assert engine.field(claim.task_id, "status") == "running"


def test_a_worker_that_came_back_under_its_name_does_not_vouch_for_what_it_does_not_hold(server: Server) -> None:
    engine = Engine(server)
    worker = engine.register("w1", lease_s=0.3)
    engine.submit()
    claim = engine.claim_one()
    stream, entry = engine.keys.stream("default", 5), engine.field(claim.task_id, "entry")
    server.call("XACK", stream, GROUP, entry)
    server.call("XDEL", stream, entry)
    time.sleep(0.7)
    engine.broker.tick(worker, [claim])
    assert engine.reconcile_all() == 0, "the worker has just said that it holds the task"
    time.sleep(0.7)
    assert engine.reconcile_all() == 1, "nobody has said so for two leases"
    assert engine.field(claim.task_id, "status") == "queued"


class ServerWithClock:
    """Says what QuietTime asks; its clock can be set."""

    last_failure = None

    def __init__(self) -> None:
        self.leapt_s = 0.0

    def call(self, *command: str) -> object:
        assert command[0] == "INFO"
        return b"uptime_in_seconds:86400\r\n"

    def now(self) -> float:
        return time.time() + self.leapt_s


@pytest.mark.parametrize("looked_before", [True, False], ids=["the leader", "one that has only registered"])
def test_ended_leases_are_not_believed_when_the_clock_of_redis_has_leapt(looked_before: bool) -> None:
    """Set right by hand, or a machine that slept: all leases look ended, and their owners renew them in a moment."""
    server = ServerWithClock()
    quiet = QuietTime(cast("Server", server), watch_clock=True)
    if looked_before:
        assert quiet.ms() > 3_600_000
    else:
        quiet.note_time(time.time(), time.monotonic())
    assert quiet.ms() > 3_600_000, "time that goes by is no leap"
    server.leapt_s = 60.0
    assert quiet.ms() < 5_000
    server.leapt_s = -60.0
    since = quiet.ms()
    assert quiet.ms() >= since, "a step back ends no lease"
