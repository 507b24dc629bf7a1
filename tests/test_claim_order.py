"""In which order tasks are claimed, what a claim leaves alone, and what it does with tickets that stand for nothing."""

from __future__ import annotations

import threading
import time

import pytest

from dtq.broker import ITEMS_A_SCRIPT, ClaimBatch
from dtq.keys import GROUP, PARKED
from dtq.model import Actor, Claim, HandlerPolicy
from dtq.redisio import Server
from dtq.states import Status
from tests.support.engine import Engine
from tests.support.invariants import check_invariants

S = Status


@pytest.fixture
def engine(server: Server) -> Engine:
    return Engine(server)


def ids(claims: list[Claim]) -> list[str]:
    return [claim.task_id for claim in claims]


def test_prio_03_bands_are_claimed_from_9_down_to_0_and_first_in_first_out_within_each(engine: Engine) -> None:
    expected: dict[int, list[str]] = {}
    for number in range(200):
        band = number % 10
        expected.setdefault(band, []).append(engine.submit(priority=band))
    started = []
    while claims := engine.claim("w1", 1):
        started += ids(claims)
        engine.commit(claims[0])
    assert started == [task_id for band in range(9, -1, -1) for task_id in expected[band]]


def test_prio_03_an_urgent_task_is_the_very_next_to_start(engine: Engine) -> None:
    engine.submit_many(100, priority=0)
    engine.claim_one()
    urgent = engine.submit(priority=9)
    assert engine.claim_one().task_id == urgent


def test_claim_17_a_claim_of_one_takes_one_and_not_one_of_each_band(any_server: Server) -> None:
    engine = Engine(any_server)
    for band in range(10):
        engine.submit_many(5, priority=band)
    engine.claim_one()
    assert [len(engine.pending(band=band)) for band in (9,)] == [1]
    for band in range(9):
        groups = any_server.call("XINFO", "GROUPS", engine.keys.stream("default", band))
        assert groups == [], f"band {band} was not even looked at"


def test_a_claim_goes_through_the_queues_as_they_are_given(engine: Engine) -> None:
    low = engine.submit(queue="first", priority=0)
    high = engine.submit(queue="second", priority=9)
    assert ids(engine.claim("w1", 2, ["first", "second"])) == [low, high]


def test_what_is_handed_back_keeps_its_place_and_its_attempt_number(any_server: Server) -> None:
    engine = Engine(any_server)
    expected = engine.submit_many(6)
    claims = engine.claim("w1", 4)
    assert engine.broker.hand_back("w1", [claims[2], claims[0]]) == 2
    again = engine.claim("w2", 10)
    assert ids(again) == [expected[0], expected[2], expected[4], expected[5]]
    assert {claim.attempt for claim in again} == {1}
    assert again[0].seq == claims[0].seq + 2, "the fencing token rises by the enqueue and by the claim"
    assert engine.broker.hand_back("w1", [claims[0]]) == 0, "it is another worker's now"
    assert engine.totals()["echo:handed_back"] == 2


def test_a_handed_back_task_is_shown_without_the_progress_of_the_run_that_was_given_up(engine: Engine) -> None:
    engine.submit()
    claim = engine.claim_one()
    assert engine.broker.progress("w1", claim, 0.5, "half")
    engine.broker.hand_back("w1", [claim])
    task = engine.task(claim.task_id)
    assert (task.progress, task.worker_id, task.started_at, task.attempt) == (None, None, None, 0)


def test_a_task_whose_cancellation_was_asked_for_is_cancelled_when_it_is_handed_back_or_settled(
    any_server: Server,
) -> None:
    engine = Engine(any_server)
    one, other, third = engine.submit_many(3)
    claims = engine.claim("w1")
    for task_id in (one, other):
        engine.cancel(task_id, "not wanted")
    assert engine.broker.hand_back("w1", claims[:1]) == 1
    assert engine.broker.settle("w1", ["default"], []) == 2
    assert [engine.task(task_id).status for task_id in (one, other, third)] == [S.CANCELLED, S.CANCELLED, S.QUEUED]
    assert engine.task(other).reason == "not wanted"
    check_invariants(any_server, engine.keys, engine.settings)


def test_retries_go_to_the_tail_of_their_band(engine: Engine) -> None:
    first, second = engine.submit_many(2)
    engine.commit(engine.claim_one(), "retry", delay_ms=0)
    assert engine.promote() == 1
    assert ids(engine.claim("w1", 5)) == [second, first]


def test_an_expired_task_never_starts(any_server: Server) -> None:
    engine = Engine(any_server)
    late = engine.submit(metadata={"ttl_seconds": 0.001})
    fine = engine.submit(metadata={"ttl_seconds": 600})
    time.sleep(0.003)
    assert ids(engine.claim()) == [fine]
    assert engine.task(late).status is S.EXPIRED
    assert engine.kinds(late) == ["TASK_QUEUED", "TASK_EXPIRED"]
    check_invariants(any_server, engine.keys, engine.settings)


def test_a_suspect_comes_alone_and_nothing_that_was_read_with_it_loses_its_place(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.register("w1")
    first, suspect = engine.submit_many(2)
    engine.claim_one("w1")
    engine.claim_one("w1")
    engine.reclaim()
    fresh = engine.submit_many(3)
    urgent = engine.submit(priority=9)
    order = []
    while claims := engine.claim("w2", 10):
        order.append((ids(claims), [claim.suspect for claim in claims]))
    assert order == [([urgent], [0]), ([first], [1]), ([suspect], [1]), (fresh, [0, 0, 0])]
    check_invariants(any_server, engine.keys, engine.settings)


def test_a_suspect_that_was_read_with_others_is_put_back_and_so_is_what_came_after_it(engine: Engine) -> None:
    """A suspect whose ticket was made anew stands among those that nobody has claimed yet."""
    before = engine.submit()
    suspect = engine.submit()
    after = engine.submit()
    engine.server.call("HSET", engine.keys.task(suspect), "suspect", 1)
    batch = engine.claim_batch("w1", 10)
    assert (ids(batch.claims), batch.more) == ([before], True)
    assert engine.pending() == [
        (engine.field(before, "entry"), "w1"),
        (engine.field(suspect, "entry"), PARKED),
        (engine.field(after, "entry"), PARKED),
    ]
    assert ids(engine.claim("w1", 10)) == [suspect]
    assert ids(engine.claim("w1", 10)) == [after]


def test_a_claim_that_leaves_work_behind_rings_for_the_next_worker(engine: Engine) -> None:
    engine.submit_many(3)
    tokens = engine.server.call("XLEN", engine.keys.wake("default"))
    assert engine.claim_batch("w1", 2).more
    assert engine.server.call("XLEN", engine.keys.wake("default")) == tokens + 1
    assert not engine.claim_batch("w1", 2).more
    assert engine.server.call("XLEN", engine.keys.wake("default")) == tokens + 1


def test_it_rings_for_each_queue_that_has_work_left_and_only_where_it_is_asked_to(engine: Engine) -> None:
    queues = ["a", "b", "empty", "c", "paused"]
    for queue in ("a", "b", "c", "paused"):
        engine.submit_many(2, queue=queue)
    engine.control.pause("paused", Actor("somebody", ""))

    def tokens() -> list[int]:
        return [engine.server.call("XLEN", engine.keys.wake(queue)) for queue in queues]

    before = tokens()
    batch = engine.broker.claim("w1", queues, 3, ring=False)
    assert ([claim.queue for claim in batch.claims], batch.more) == (["a", "a", "b"], True)
    assert tokens() == before
    assert engine.broker.claim("w1", queues, 1).more
    assert [after - one for after, one in zip(tokens(), before, strict=True)] == [0, 0, 0, 1, 0]


def test_work_that_no_claim_can_have_rings_for_nobody(engine: Engine) -> None:
    """Neither a task of a newer dtq nor one whose ticket was lost may keep the workers claiming in circles."""
    newer, lost = engine.submit_many(2)
    engine.server.call("HSET", engine.keys.task(newer), "v", 2)
    entry = engine.field(lost, "entry")
    engine.server.call("XDEL", engine.keys.stream("default", 5), entry or "")
    tokens = engine.server.call("XLEN", engine.keys.wake("default"))
    batch = engine.claim_batch()
    assert (batch.claims, batch.more, batch.newer) == ([], False, 1)
    assert engine.claim_batch() == ClaimBatch([], False, 0, 0)
    assert engine.server.call("XLEN", engine.keys.wake("default")) == tokens


def test_a_claim_of_nothing_takes_nothing(engine: Engine) -> None:
    engine.submit()
    assert engine.claim_batch("w1", 0) == ClaimBatch([], True, 0, 0)
    assert engine.claim_batch("w1", 5, []) == ClaimBatch([], False, 0, 0)
    assert engine.claim_batch("w1", 5, ["never-used"]) == ClaimBatch([], False, 0, 0)


def test_a_claim_is_bounded_however_much_is_asked_for(engine: Engine) -> None:
    engine.submit_many(150)
    batch = engine.claim_batch("w1", 1000)
    assert (len(batch.claims), batch.more) == (ITEMS_A_SCRIPT, True)


def test_a_claim_is_bounded_however_many_tickets_stand_for_nothing(engine: Engine) -> None:
    """A thousand expired tasks in front of a good one: each claim clears a hundred away, and none takes long."""
    engine.submit_many(1000, metadata={"ttl_seconds": 0.001})
    good = engine.submit()
    time.sleep(0.003)
    calls = 0
    claims: list[Claim] = []
    while not claims:
        batch = engine.claim_batch("w1", 10)
        calls, claims = calls + 1, batch.claims
        assert batch.more is (not claims)
        assert calls < 20
    assert ids(claims) == [good]
    assert calls == 10
    assert engine.queries.counts("default")[S.EXPIRED] == 1000


def test_the_handlers_policy_fills_what_the_submission_left_open(engine: Engine) -> None:
    engine.register("w1", handlers={"echo": HandlerPolicy(3, 1500, None), "bare": HandlerPolicy(None, None, None)})
    open_, own, bare = engine.submit(), engine.submit(max_attempts=7, timeout_ms=99), engine.submit(task_type="bare")
    strange = engine.submit(task_type="strange")
    told = {claim.task_id: (claim.max_attempts, claim.timeout_ms) for claim in engine.claim("w1")}
    assert told == {
        open_: (3, 1500),
        own: (7, 99),
        bare: (5, engine.settings.task_timeout_ms),
        strange: (None, None),
    }
    assert engine.task(open_).max_attempts == 3
    assert engine.task(strange).max_attempts is None


def test_pause_01_nothing_is_claimed_of_a_paused_queue(any_server: Server) -> None:
    engine = Engine(any_server)
    assert engine.pause("default", "somebody", "maintenance")
    assert not engine.pause("default", "another"), "it stays as it was"
    expected = engine.submit_many(10)
    other = engine.submit(queue="other")
    batch = engine.claim_batch("w1", 100, ["default", "other"])
    assert (ids(batch.claims), batch.more) == ([other], False)
    paused = engine.queries.queue("default").paused
    assert paused is not None
    assert (paused["by"], paused["reason"]) == ("somebody", "maintenance")
    assert engine.resume("default", "somebody")
    assert not engine.resume("default", "somebody")
    assert ids(engine.claim()) == expected, "in the old order"
    kinds = [event[0] for event in engine.events() if event[0].startswith("QUEUE_")]
    assert kinds == ["QUEUE_PAUSED", "QUEUE_RESUMED"]


def test_pause_02_what_is_delayed_retried_reclaimed_or_requeued_waits_too(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.register("w1")
    delayed = engine.seed(S.PENDING, "default").task_id
    retried = engine.seed(S.RETRYING, "default").task_id
    dead = engine.seed(S.DEAD_LETTERED, "default").task_id
    orphaned = engine.seed(S.RUNNING, "default").task_id
    running = engine.seed(S.RUNNING, "default")
    engine.pause("default", "somebody")
    engine.requeue(dead, "somebody")
    assert engine.promote() == 2
    assert running.claim is not None
    engine.end_leases("w1")
    engine.broker.tick(engine.worker("w1", lease_s=0.001), [running.claim])  # this one is renewed
    assert engine.broker.upkeep.reclaim() in (0, 1, 2)
    while engine.task(orphaned).status is S.RUNNING:
        engine.reclaim()
    assert engine.claim() == []
    waiting = engine.queries.queue("default")
    assert waiting.counts[S.QUEUED] + waiting.counts[S.RUNNING] == 5
    assert sum(waiting.waiting_by_priority.values()) == waiting.counts[S.QUEUED]
    restarted = Engine(any_server)
    assert restarted.claim("w2") == [], "whoever asks, it is still paused"
    engine.resume("default", "somebody")
    claimed = []
    while claims := restarted.claim("w2"):
        claimed += ids(claims)
    assert {delayed, retried, dead, orphaned} <= set(claimed)


def test_tickets_of_a_newer_dtq_are_set_aside_and_the_rest_goes_on(any_server: Server) -> None:
    engine = Engine(any_server)
    newer, good = engine.submit_many(2)
    engine.server.call("HSET", engine.keys.task(newer), "v", 7)
    batch = engine.claim_batch()
    assert (ids(batch.claims), batch.newer) == ([good], 1)
    assert engine.claim_batch() == ClaimBatch([], False, 0, 0)
    assert engine.field(newer, "status") == "queued"
    assert (engine.field(newer, "entry"), f"{PARKED}-v7") in engine.pending()
    engine.register("w1")
    assert engine.reclaim() == 1, "only the good one, whose lease has ended"
    assert not engine.broker.tick(engine.register("w2"), []).overdue


@pytest.mark.parametrize("by", ["reclaim", "reconcile_all"])
def test_what_an_older_worker_has_set_aside_is_taken_up_by_the_first_that_can_read_it(
    any_server: Server, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    older = Engine(any_server)
    task_id = older.submit()
    any_server.call("HSET", older.keys.task(task_id), "v", 7)
    assert older.claim_batch().newer == 1
    older.register("w1")
    getattr(older, by)()
    assert older.claim_batch().claims == [], "it is as unreadable as before"
    monkeypatch.setattr("dtq.scripts.SCHEMA_VERSION", 7)
    newer = Engine(any_server)
    newer.register("w1", lease_s=0.001)  # so that it may be looked at once
    getattr(newer, by)()
    assert ids(newer.claim("w2")) == [task_id]


@pytest.mark.parametrize(
    "fields", [("junk", "1"), ("id", ""), ("id", "no\nword"), ("id", "f" * 32), ("seq", "1", "id", "x y")]
)
def test_pay_01_a_ticket_that_names_no_task_is_absorbed_once(any_server: Server, fields: tuple[str, ...]) -> None:
    engine = Engine(any_server)
    stream = engine.keys.stream("default", 9)
    any_server.call("XADD", stream, "*", *fields)
    good = engine.submit()
    batch = engine.claim_batch()
    assert (ids(batch.claims), batch.absorbed) == ([good], 1)
    assert any_server.call("XLEN", stream) == 0
    assert any_server.call("XPENDING", stream, GROUP)[0] == 0
    assert sum(number for name, number in engine.totals().items() if name.endswith(":absorbed")) == 1


def test_a_second_ticket_of_a_task_is_absorbed_and_never_run(any_server: Server) -> None:
    engine = Engine(any_server)
    task_id = engine.submit()
    any_server.call("XADD", engine.keys.stream("default", 9), "*", "id", task_id, "seq", 1, "attempt", 1)
    batch = engine.claim_batch()
    assert (ids(batch.claims), batch.absorbed) == ([task_id], 1)
    any_server.call("XADD", engine.keys.stream("default", 5), "*", "id", task_id, "seq", 2, "attempt", 1)
    assert engine.claim_batch() == ClaimBatch([], False, 1, 0)
    assert engine.kinds(task_id).count("TASK_DUPLICATE_ABSORBED") == 2
    assert engine.commit(batch.claims[0]) is S.SUCCEEDED
    check_invariants(any_server, engine.keys, engine.settings)


SPOILT = {
    "no time of creation": ("HDEL", "created"),
    "a strange time of creation": ("HSET", "created", "yesterday"),
    "no type": ("HDEL", "type"),
    "a type that is no UTF-8": ("HSET", "type", b"\xff\xfe"),
    "a type with a line break": ("HSET", "type", "a\tb\nc"),
    "no schema version": ("HDEL", "v"),
    "a strange schema version": ("HSET", "v", "new"),
    "no fencing token": ("HDEL", "seq"),
    "a strange attempt": ("HSET", "attempt", "1e3"),
    "a strange time of expiry": ("HSET", "expires", "inf"),
    "a strange limit": ("HSET", "max_attempts", "-3"),
    "a strange delay": ("HSET", "available", "0x10"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_pay_01_a_record_that_cannot_be_read_becomes_a_dead_letter_once_and_the_next_task_runs(
    any_server: Server, what: str
) -> None:
    engine = Engine(any_server)
    bad, good = engine.submit_many(2)
    command, *rest = SPOILT[what]
    any_server.call(command, engine.keys.task(bad), *rest)
    assert ids(engine.claim()) == [good]
    assert engine.claim_batch() == ClaimBatch([], False, 0, 0)
    task = engine.task(bad)
    assert (task.status, task.reason, task.payload) == (S.DEAD_LETTERED, "undecodable", {})
    assert task.error is not None
    check_invariants(any_server, engine.keys, engine.settings)


def test_pay_01_a_record_without_its_payload_becomes_a_dead_letter(any_server: Server) -> None:
    engine = Engine(any_server)
    bad, good = engine.submit_many(2)
    any_server.call("DEL", engine.keys.payload(bad))
    assert ids(engine.claim()) == [good]
    assert (engine.task(bad).status, engine.task(bad).reason) == (S.DEAD_LETTERED, "undecodable")


def test_an_unreadable_record_that_was_buried_can_be_evicted_and_requeued(engine: Engine) -> None:
    """Burying sets right what later scripts need: none of them may fail in the middle for its sake."""
    small = Engine(engine.server, dlq_maxlen=1)
    bad, worse = small.submit_many(2)
    for task_id in (bad, worse):
        small.server.call("HDEL", small.keys.task(task_id), "type", "created", "queue", "priority", "seq")
    assert small.claim() == []
    assert [small.task(task_id).status for task_id in (bad, worse)] == [S.FAILED, S.DEAD_LETTERED]
    check_invariants(small.server, small.keys, small.settings)
    small.requeue(worse, "somebody")
    assert ids(small.claim()) == [worse]


def test_redis_02_a_group_that_was_destroyed_is_made_again_and_nothing_unread_is_lost(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.submit_many(10)
    first = engine.claim_one()
    any_server.call("XGROUP", "DESTROY", engine.keys.stream("default", 5), GROUP)
    claims = engine.claim()
    assert len(claims) == 9, "the one that runs is not started again"
    assert engine.commit(first) is S.SUCCEEDED


def test_many_workers_at_once_claim_every_task_once(server: Server) -> None:
    shared = Server.connect(server.safe_url, max_connections=8)
    engine = Engine(shared)
    expected = engine.submit_many(600)
    seen: list[str] = []
    lock = threading.Lock()

    def work(name: str) -> None:
        while claims := engine.claim(name, 7):
            done = [engine.commit(claim, worker_id=name) for claim in claims]
            assert set(done) == {S.SUCCEEDED}
            with lock:
                seen.extend(ids(claims))

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(seen) == sorted(expected)
    shared.close()
    check_invariants(server, engine.keys, engine.settings)
