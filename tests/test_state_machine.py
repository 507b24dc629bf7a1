"""Random histories against a plain model: after every step the engine holds exactly what the model says.

STATE_MACHINE_EXAMPLES=500 runs that many histories, other ones each time.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dtq.broker import Replay
from dtq.errors import DtqError, IdempotencyInProgress, TaskFinished, TooManyQueues, WrongState
from dtq.model import Claim, Outcome, Task
from dtq.redisio import Server
from dtq.states import Status
from tests.support.engine import FAR_MS, Engine, Kind, outcome
from tests.support.invariants import check_invariants
from tests.support.task_model import LIMITS, MAX_QUEUES, Known, Model

EXAMPLES = int(os.environ.get("STATE_MACHINE_EXAMPLES", "0"))
S = Status
T = TypeVar("T")
WORKERS = ("w1", "w2", "w3")
QUEUES = ("alpha", "beta", "gamma", "delta")  # one more than is allowed
KEYS = (None, None, "one", "two")

worker_ids = st.sampled_from(WORKERS)
queue_names = st.sampled_from((*QUEUES, "alpha", "alpha", "alpha"))  # few queues, so that they fill
bands = st.sampled_from((0, 5, 9))
kinds: st.SearchStrategy[Kind] = st.sampled_from(("succeed", "retry", "dead", "snooze", "unknown"))
wishes = st.fixed_dictionaries(
    {
        "queue": queue_names,
        "priority": bands,
        "key": st.sampled_from(KEYS),
        "body": st.integers(0, 1),
        "delayed": st.booleans(),
        "ttl": st.booleans(),
    }
)


def one_of(data: st.DataObject, found: Sequence[T]) -> T:
    """Draw one by its place: what stands there has another id in every run."""
    return found[data.draw(st.integers(0, len(found) - 1))]


class Machine(RuleBasedStateMachine):
    """Every rule does one thing to the engine and the same to the model, and compares the two answers."""

    server: Server

    def __init__(self) -> None:
        super().__init__()
        self.server.call("FLUSHALL")
        self.engine = Engine(self.server, **LIMITS)
        self.broker = self.engine.broker
        self.model = Model()
        self.good: list[tuple[str, Claim]] = []
        self.over: list[tuple[str, Claim]] = []
        self.seqs: Counter[str] = Counter()
        # Ids in the order of submission: what is drawn may not depend on chance, or no failure could be repeated.
        numbers = itertools.count(1)
        self.ids = patch("dtq.model.new_task_id", lambda: f"{next(numbers):012x}7{'0' * 19}")
        self.ids.start()

    def teardown(self) -> None:
        self.ids.stop()

    @initialize()
    def workers_come(self) -> None:
        for name in WORKERS:
            self.engine.register(name, queues=QUEUES)

    # --- choosing -----------------------------------------------------------------------------------------------------

    def pick(self, data: st.DataObject, *statuses: Status) -> Known:
        return one_of(data, self.model.having(*statuses))

    def claims_of(self, worker_id: str) -> list[Claim]:
        return [claim for owner, claim in self.good if owner == worker_id]

    def sort_claims(self) -> None:
        """Claims whose fence is gone are kept, to be tried once more."""
        for pair in list(self.good):
            if self.model.owner_of(pair[1], pair[0]) is None:
                self.good.remove(pair)
                self.over = [*self.over[-5:], pair]

    def evict(self) -> None:
        entries = self.server.call("XRANGE", self.engine.keys.dead_letter(), "-", "+")
        self.model.evict([fields[1].decode() for _, fields in entries])

    # --- submitting ---------------------------------------------------------------------------------------------------

    @rule(asked=st.lists(wishes, min_size=1, max_size=6))
    def submit(self, asked: list[dict[str, Any]]) -> None:
        answers = self.engine.offer(*[self._submission(**one) for one in asked])
        for one, answer in zip(asked, answers, strict=True):
            scope = (one["queue"], one["key"]) if one["key"] else None
            expected = self.model.refusal(one["queue"], scope, one["body"], one["delayed"])
            if expected is None:
                assert isinstance(answer, Task), (one, answer)
                status = S.PENDING if one["delayed"] else S.QUEUED
                assert answer.status is status
                self.model.accept(
                    Known(answer.task_id, one["queue"], one["priority"], scope, one["body"], one["ttl"], status)
                )
            elif isinstance(answer, Replay):
                assert scope is not None
                assert expected == "REPLAY"
                assert answer.task_id == self.model.scopes[scope]
            else:
                assert isinstance(answer, DtqError), answer
                assert answer.code == expected, (one, answer)
                if isinstance(answer, IdempotencyInProgress):
                    assert scope is not None
                    assert answer.context["task_id"] == self.model.scopes[scope]

    def _submission(self, *, queue: str, priority: int, key: str | None, body: int, delayed: bool, ttl: bool) -> Any:
        # What a body says beside the number must follow from it and the key, or the fingerprint would differ.
        fields: dict[str, Any] = {"queue": queue, "payload": {"body": body}, "priority": priority}
        if key is not None:
            fields |= {"idempotency_key": key}
        if delayed:
            fields["delay_seconds"] = 3600
        if ttl:
            fields["metadata"] = {"ttl_seconds": 86_400}
        submission = self.engine.submission(**fields)
        if key is not None:  # the model tells bodies apart by their number alone
            submission.__dict__["fingerprint"] = f"{body:032x}"
        return submission

    # --- working ------------------------------------------------------------------------------------------------------

    @rule(worker=worker_ids, queues=st.lists(queue_names, min_size=1, max_size=3, unique=True), limit=st.integers(1, 9))
    def claim(self, worker: str, queues: list[str], limit: int) -> None:
        expected = self.model.claim(worker, queues, limit)
        batch = self.broker.claim(worker, queues, limit)
        assert [claim.task_id for claim in batch.claims] == [task.task_id for task in expected]
        for claim, task in zip(batch.claims, expected, strict=True):
            told = (claim.seq, claim.attempt, claim.queue, claim.priority, claim.failures, claim.suspect)
            assert told == (task.seq, task.attempt, task.queue, task.band, task.failures, task.suspect)
            self.good.append((worker, claim))
        left = any(self.model.waiting(queue) for queue in queues if queue not in self.model.paused)
        assert (batch.more, batch.absorbed, batch.newer) == (left, 0, 0)

    @precondition(lambda self: self.good)
    @rule(data=st.data(), kind=st.one_of(st.none(), kinds))
    def commit(self, data: st.DataObject, kind: Kind | None) -> None:
        worker, _ = one_of(data, self.good)
        choice = self.claims_of(worker) + [claim for owner, claim in self.over if owner == worker]
        picked = [one_of(data, choice) for _ in range(data.draw(st.integers(1, 8)))]
        chosen: list[Kind] = [data.draw(kinds) if kind is None else kind for _ in picked]
        pairs = zip(picked, chosen, strict=True)
        self.record(worker, [outcome(claim, one, delay_ms=3_600_000) for claim, one in pairs])

    @rule(queue=queue_names, limit=st.integers(3, 9), kind=kinds)
    def a_worker_does_its_work(self, queue: str, limit: int, kind: Kind) -> None:
        self.claim("w1", [queue], limit)
        self.record("w1", [outcome(claim, kind, delay_ms=3_600_000) for claim in self.claims_of("w1")])

    @rule(queue=queue_names, limit=st.integers(2, 9), alone=st.sampled_from((None, False, True)))
    def a_worker_dies(self, queue: str, limit: int, alone: bool | None) -> None:
        self.claim("w1", [queue], limit)
        for claim in self.claims_of("w1") if alone is not None else []:
            assert self.broker.start_suspect("w1", claim, bool(alone))
            self.model.tasks[claim.task_id].alone = alone
        self.leases_end()

    def record(self, worker: str, outcomes: list[Outcome]) -> None:
        answers = self.broker.commit(worker, outcomes)
        first: dict[tuple[str, int], Status | None] = {}
        for one, answer in zip(outcomes, answers, strict=True):
            claim = one.claim
            name = (claim.task_id, claim.seq)
            task = self.model.owner_of(claim, worker)
            if name in first:
                assert answer is first[name]
            elif task is not None:
                assert answer is self.model.finish(task, one.kind), (one.kind, task)
                if answer is S.PENDING and one.kind == "unknown":
                    self.put_off(task.task_id)
            else:  # either another one's by now, or this very claim has ended so before
                known = self.model.tasks.get(claim.task_id)
                assert answer == (known.status if known is not None and known.seq == claim.seq else None)
            first[name] = answer
        self.evict()
        self.sort_claims()

    def put_off(self, task_id: str) -> None:
        """Of a type that nobody knew, a task is due in a second: too soon for a machine that is busy."""
        later = str(2 * 10**12)
        self.server.pipeline(
            [
                ("ZADD", self.engine.keys.schedule(), "XX", later, task_id),
                ("HSET", self.engine.keys.task(task_id), "available", later),
            ]
        )

    @precondition(lambda self: self.good)
    @rule(data=st.data())
    def hand_back(self, data: st.DataObject) -> None:
        worker, _ = one_of(data, self.good)
        picked = [claim for claim in self.claims_of(worker) if data.draw(st.booleans())]
        assert self.broker.hand_back(worker, picked) == len(picked)
        for claim in picked:
            self.model.hand_back(self.model.tasks[claim.task_id])
        self.sort_claims()

    @precondition(lambda self: self.good)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        worker, _ = one_of(data, self.good)
        held = {claim.task_id for claim in self.claims_of(worker) if data.draw(st.booleans())}
        unheld = [claim for claim in self.claims_of(worker) if claim.task_id not in held]
        assert self.broker.settle(worker, QUEUES, held) == len(unheld)
        for claim in unheld:
            self.model.hand_back(self.model.tasks[claim.task_id])
        self.sort_claims()

    @precondition(lambda self: self.good)
    @rule(data=st.data(), alone=st.booleans())
    def start(self, data: st.DataObject, alone: bool) -> None:
        worker, claim = one_of(data, self.good)
        assert self.broker.start_suspect(worker, claim, alone)
        self.model.tasks[claim.task_id].alone = alone

    @precondition(lambda self: self.over)
    @rule(data=st.data())
    def those_whose_claim_is_over_write_nothing(self, data: st.DataObject) -> None:
        worker, claim = one_of(data, self.over)
        assert not self.broker.start_suspect(worker, claim, True)
        assert not self.broker.progress(worker, claim, 0.5, "half")

    @precondition(lambda self: self.good or self.over)
    @rule(worker=worker_ids)
    def tick(self, worker: str) -> None:
        good = self.claims_of(worker)
        over = [
            claim for owner, claim in self.over if owner == worker and claim.task_id not in {c.task_id for c in good}
        ]
        tick = self.broker.tick(self.engine.worker(worker, queues=QUEUES), [*good, *over])
        assert tick.registered
        assert tick.lost == {claim.task_id for claim in over}
        assert tick.cancelled == {claim.task_id for claim in good if self.model.tasks[claim.task_id].cancel}

    # --- time ---------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.good)
    @rule()
    def leases_end(self) -> None:
        running = self.model.having(S.RUNNING)
        self.engine.end_leases(*WORKERS)
        assert self.engine.take_back() == len(running)
        for name in WORKERS:
            self.engine.register(name, queues=QUEUES)
        for task in running:
            self.model.lose(task)
        self.evict()
        self.sort_claims()

    @precondition(lambda self: self.model.having(S.PENDING, S.RETRYING))
    @rule(limit=st.integers(1, 100))
    def promote(self, limit: int) -> None:
        due = [name.decode() for name in self.server.call("ZRANGE", self.engine.keys.schedule(), 0, -1)]
        assert set(due) == {task.task_id for task in self.model.having(S.PENDING, S.RETRYING)}
        expected = self.model.promote([self.model.tasks[task_id] for task_id in due[:limit]])
        assert self.broker.upkeep.promote(limit=limit, late_ms=-FAR_MS).moved == expected

    @rule()
    def nothing_is_to_be_done(self) -> None:
        assert self.broker.upkeep.promote().moved == 0
        assert self.engine.take_back() == 0
        assert not self.broker.upkeep.check()
        assert self.engine.reconcile_all() == 0
        self.model.expire_waiting()

    @precondition(lambda self: any(task.has_ttl and not task.passed for task in self.model.tasks.values()))
    @rule(data=st.data())
    def ttl_passes(self, data: st.DataObject) -> None:
        found = [task for task in self.model.tasks.values() if task.has_ttl and not task.passed]
        task = one_of(data, found)
        self.engine.let_ttl_pass(task.task_id)
        task.passed = True

    @rule(data=st.data())
    def retention_ends(self, data: st.DataObject) -> None:
        ended = self.model.having(S.SUCCEEDED, S.FAILED, S.CANCELLED, S.EXPIRED)
        chosen = [task for task in ended if data.draw(st.booleans())]
        for task in chosen:
            member = f"{task.task_id} {task.status.value} {task.queue}"
            self.server.call("ZADD", self.engine.keys.finished(), "XX", 1, member)
        assert self.broker.upkeep.sweep() == len(chosen)
        for task in chosen:
            self.model.forget(task)

    @precondition(lambda self: any(self.model.tasks[i].terminal for i in self.model.scopes.values()))
    @rule(data=st.data())
    def key_is_forgotten(self, data: st.DataObject) -> None:
        found = [scope for scope, task_id in self.model.scopes.items() if self.model.tasks[task_id].terminal]
        scope = one_of(data, found)
        assert self.server.call("DEL", self.engine.keys.idempotency(*scope)) == 1
        del self.model.scopes[scope]

    # --- operators ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.tasks)
    @rule(data=st.data(), running=st.booleans())
    def cancel(self, data: st.DataObject, running: bool) -> None:
        task = self.pick(data, S.RUNNING) if running and self.model.having(S.RUNNING) else self.pick(data, *Status)
        if task.terminal:
            with pytest.raises(TaskFinished) as error:
                self.engine.cancel(task.task_id)
            assert error.value.context["status"] == task.status
        elif task.status is S.RUNNING:
            assert self.engine.cancel(task.task_id, "why not") is S.RUNNING
            task.cancel = True
        else:
            assert self.engine.cancel(task.task_id) is S.CANCELLED
            self.model.end(task, S.CANCELLED)

    @precondition(lambda self: self.model.tasks)
    @rule(
        data=st.data(), queue=st.one_of(st.none(), queue_names), band=st.one_of(st.none(), bands), wanted=st.booleans()
    )
    def requeue(self, data: st.DataObject, queue: str | None, band: int | None, wanted: bool) -> None:
        task = self.pick(data, S.DEAD_LETTERED) if wanted and self.model.dead else self.pick(data, *Status)
        target = queue or task.queue
        try:
            self.engine.requeue(task.task_id, "somebody", queue=queue, priority=band)
        except WrongState:
            assert task.task_id not in self.model.dead
        except TooManyQueues:
            assert target not in self.model.queues
            assert len(self.model.queues) >= MAX_QUEUES
        else:
            assert task.status is S.DEAD_LETTERED
            self.model.requeue(task, target, task.band if band is None else band)

    @precondition(lambda self: self.model.tasks)
    @rule(data=st.data(), wanted=st.booleans())
    def discard(self, data: st.DataObject, wanted: bool) -> None:
        task = self.pick(data, S.DEAD_LETTERED) if wanted and self.model.dead else self.pick(data, *Status)
        if task.task_id in self.model.dead:
            self.engine.discard(task.task_id)
            self.model.discard(task)
        else:
            with pytest.raises(WrongState):
                self.engine.discard(task.task_id)

    @rule(queue=queue_names, pause=st.booleans())
    def pause_or_resume(self, queue: str, pause: bool) -> None:
        was = queue in self.model.paused
        answer = self.engine.pause(queue, "somebody") if pause else self.engine.resume(queue, "somebody")
        assert answer == (was is not pause)
        (self.model.paused.add if pause else self.model.paused.discard)(queue)

    # --- mishaps ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.having(S.QUEUED, S.PENDING, S.RETRYING))
    @rule(data=st.data())
    def place_is_lost(self, data: st.DataObject) -> None:
        task = self.pick(data, S.QUEUED, S.PENDING, S.RETRYING)
        if task.status is S.QUEUED:
            entry = self.engine.field(task.task_id, "entry") or ""
            stream = self.engine.keys.stream(task.queue, task.band)
            self.server.pipeline([("XACK", stream, "workers", entry), ("XDEL", stream, entry)])
        else:
            assert self.server.call("ZREM", self.engine.keys.schedule(), task.task_id) == 1
        assert self.broker.upkeep.check()
        expires = task.status is S.QUEUED and task.passed
        assert self.engine.reconcile_all() == (0 if expires else 1)
        self.model.expire_waiting()
        assert not self.broker.upkeep.check()
        if expires:
            return
        self.model.count(task, "reconciled")
        if task.status is S.QUEUED:
            task.seq += 1
            self.model.ticket(task)

    # --- after every step ---------------------------------------------------------------------------------------------

    @invariant()
    def engine_is_as_the_model(self) -> None:
        state = check_invariants(self.server, self.engine.keys, self.engine.settings)
        assert set(state.tasks) == set(self.model.tasks)
        for task_id, task in self.model.tasks.items():
            record = state.tasks[task_id]
            told = {
                "status": record["status"], "queue": record["queue"], "band": int(record["priority"]),
                "worker": record.get("worker") if task.status is S.RUNNING else None,
                "cancel": record.get("cancel") == "1", "discarded": "discarded" in record,
                "has_ttl": "expires" in record,
                **{name: int(record.get(name, 0))
                   for name in ("seq", "attempt", "failures", "crashes", "suspect", "requeued")},
                "history": self.server.call("LLEN", self.engine.keys.attempts(task_id)),
            }  # fmt: skip
            expected = {name: getattr(task, name) for name in told}
            if task.status is not S.RUNNING:
                expected["worker"] = None
            assert told == expected, task_id
            assert task.seq >= self.seqs[task_id], "a fencing token went back"
            self.seqs[task_id] = task.seq
        assert state.totals() == self.model.totals
        assert set(state.queues) == self.model.queues
        scopes = {self.engine.keys.idempotency(*scope): task_id for scope, task_id in self.model.scopes.items()}
        found = {name: content[b"task"].decode() for name, (content, _) in self.idempotency(state.raw).items()}
        assert found == scopes

    def idempotency(self, raw: dict[str, Any]) -> dict[str, Any]:
        prefix = f"{self.engine.keys.namespace}:"
        return {prefix + name: value for name, value in raw.items() if name.startswith("idempotency:")}


def test_any_history_leaves_the_engine_as_the_model_says(server: Server) -> None:
    Machine.server = server
    began = time.monotonic()
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES or 35,
            stateful_step_count=40,
            deadline=None,
            derandomize=not EXAMPLES,
            database=None,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert EXAMPLES or time.monotonic() - began < 60, "too slow for a test that everybody runs"
