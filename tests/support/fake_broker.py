"""The engine in memory, with the broker's interface and just enough of its rules for tests of the worker's actors."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from dtq.broker import Broker, ClaimBatch, Tick
from dtq.errors import RedisFull, RedisUnavailable
from dtq.model import Claim, HandlerPolicy, Outcome, WorkerInfo
from dtq.redisio import Interrupted
from dtq.registry import Registry
from dtq.settings import load_settings
from dtq.states import Status
from dtq.upkeep import Promotion, Reconciliation
from dtq.worker.state import WorkerState


@dataclass
class FakeTask:
    claim: Claim
    status: Status = Status.QUEUED
    owner: str = ""
    cancel: bool = False
    outcome: Outcome | None = None
    due: float = 0.0


class FakeBroker:
    """Tasks in lists. `away` and `full` make every call fail; `lose_reply` does the work and then fails."""

    def __init__(self) -> None:
        self.tasks: dict[str, FakeTask] = {}
        self.waiting: list[str] = []
        self.away = False
        self.full = False
        self.lose_reply = ""
        """The name of the method whose next answer is lost."""
        self.upkeep = self
        self.calls: list[tuple[Any, ...]] = []
        self.leader = False
        self.command: Literal["quiet", "stop"] | None = None
        self.overdue = False
        self.registered: dict[str, WorkerInfo] = {}
        self.policies: Mapping[str, HandlerPolicy] = {}
        self.bell = threading.Event()
        self.leader_bell = threading.Event()
        self.wakes = 0
        self.broken_outcomes: set[str] = set()
        """Task ids whose outcomes break the script."""
        self.promotions: list[Promotion] = []
        self._ids = itertools.count(1)
        self._lock = threading.RLock()

    # --- for tests ----------------------------------------------------------------------------------------------------

    def add(self, task_type: str, payload: Any = None, **fields: Any) -> str:
        """Queue a task; fields: those of Claim."""
        with self._lock:
            task_id = f"{next(self._ids):032x}"
            values: dict[str, Any] = {
                "seq": 1, "attempt": 0, "queue": "default", "priority": 5, "max_attempts": None, "timeout_ms": None,
                "failures": 0, "suspect": 0, "unknown_since": None, "extra": b"", "waited_s": 0.0, "age_s": 0.0,
            }  # fmt: skip
            raw = fields.pop("raw", None)
            values.update(fields)
            text = json.dumps({} if payload is None else payload).encode() if raw is None else raw
            self.tasks[task_id] = FakeTask(Claim(task_id=task_id, task_type=task_type, payload=text, **values))
            self.waiting.append(task_id)
            self.bell.set()
            return task_id

    def run_again(self, task_id: str) -> None:
        """Queue a task again, whatever became of it."""
        with self._lock:
            self.tasks[task_id].status = Status.QUEUED
            self.waiting.append(task_id)
            self.bell.set()

    def status(self, task_id: str) -> Status:
        return self.tasks[task_id].status

    def outcome(self, task_id: str) -> Outcome:
        found = self.tasks[task_id].outcome
        assert found is not None, f"no outcome of {task_id} was recorded"
        return found

    def named(self, method: str) -> list[tuple[Any, ...]]:
        """The calls of one method."""
        return [call for call in self.calls if call[0] == method]

    def steal(self, task_id: str) -> None:
        """Another worker gets the task: the claim that holds now is over."""
        task = self.tasks[task_id]
        task.claim = task.claim._replace(seq=task.claim.seq + 2)
        task.owner = "thief"

    def _enter(self, method: str, *details: Any) -> None:
        self.calls.append((method, *details))
        if self.away:
            raise RedisUnavailable("the test has put Redis to sleep", reason="unreachable")
        if self.full and method in ("claim", "hand_back", "progress", "tick", "register"):
            raise RedisFull("the test has filled Redis")

    def _leave(self, method: str) -> None:
        if self.lose_reply == method:
            self.lose_reply = ""
            raise RedisUnavailable(f"the test has lost the answer of {method}", reason="timeout")

    # --- the broker's interface ---------------------------------------------------------------------------------------

    def claim(self, worker_id: str, queues: Sequence[str], limit: int, *, ring: bool = True) -> ClaimBatch:
        with self._lock:
            self._enter("claim", limit, ring)
            self.bell.clear()
            order = sorted(self.waiting, key=lambda i: (queues.index(self.tasks[i].claim.queue), -self._band(i)))
            claims: list[Claim] = []
            for task_id in order:
                task = self.tasks[task_id]
                if len(claims) >= limit or (task.claim.suspect and claims):
                    break
                task.claim = task.claim._replace(seq=task.claim.seq + 1, attempt=task.claim.attempt + 1)
                task.status, task.owner = Status.RUNNING, worker_id
                self.waiting.remove(task_id)
                claims.append(task.claim)
                if task.claim.suspect:
                    break
            if self.waiting and ring:
                self.bell.set()
            self._leave("claim")
            return ClaimBatch(claims, bool(self.waiting), 0, 0)

    def _band(self, task_id: str) -> int:
        return self.tasks[task_id].claim.priority

    def settle(self, worker_id: str, queues: Sequence[str], held: Collection[str]) -> int:
        with self._lock:
            self._enter("settle", frozenset(held))
            lost = [
                task.claim
                for task in self.tasks.values()
                if task.status is Status.RUNNING and task.owner == worker_id and task.claim.task_id not in held
            ]
            self._release(lost)
            return len(lost)

    def _release(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            task = self.tasks[claim.task_id]
            task.claim = task.claim._replace(seq=task.claim.seq + 1, attempt=task.claim.attempt - 1)
            task.status, task.owner = Status.QUEUED, ""
            self.waiting.insert(0, claim.task_id)
            self.bell.set()

    def start_suspect(self, worker_id: str, claim: Claim, alone: bool) -> bool:
        with self._lock:
            self._enter("start_suspect", claim.task_id, alone)
            return self._ours(worker_id, claim)

    def _ours(self, worker_id: str, claim: Claim) -> bool:
        task = self.tasks[claim.task_id]
        return task.status is Status.RUNNING and task.owner == worker_id and task.claim.seq == claim.seq

    def commit(self, worker_id: str, outcomes: Sequence[Outcome]) -> list[Status | None]:
        with self._lock:
            self._enter("commit", len(outcomes))
            if any(outcome.claim.task_id in self.broken_outcomes for outcome in outcomes):
                raise ValueError("the test has broken the script")
            ends = {"succeed": Status.SUCCEEDED, "retry": Status.RETRYING, "dead": Status.DEAD_LETTERED,
                    "snooze": Status.PENDING, "unknown": Status.PENDING, "cancelled": Status.CANCELLED}  # fmt: skip
            answers: list[Status | None] = []
            for outcome in outcomes:
                task = self.tasks[outcome.claim.task_id]
                if not self._ours(worker_id, outcome.claim):
                    repeated = task.outcome is outcome
                    answers.append(task.status if repeated else None)
                    continue
                task.outcome = outcome
                task.status = Status.CANCELLED if task.cancel else ends[outcome.kind]
                answers.append(task.status)
            self._leave("commit")
            return answers

    def hand_back(self, worker_id: str, claims: Sequence[Claim]) -> int:
        with self._lock:
            self._enter("hand_back", [claim.task_id for claim in claims])
            ours = [claim for claim in claims if self._ours(worker_id, claim)]
            self._release(ours)
            self._leave("hand_back")
            return len(ours)

    def progress(self, worker_id: str, claim: Claim, fraction: float, message: str) -> bool:
        with self._lock:
            self._enter("progress", claim.task_id, fraction, message)
            return self._ours(worker_id, claim)

    def register(self, worker: WorkerInfo, handlers: Mapping[str, HandlerPolicy]) -> None:
        self._enter("register", worker)
        self.registered[worker.worker_id] = worker
        self.policies = handlers

    def deregister(self, worker_id: str, queues: Sequence[str] = ()) -> None:
        self._enter("deregister")
        self.registered.pop(worker_id, None)

    def tick(self, worker: WorkerInfo, held: Sequence[Claim], *, lead: bool = True) -> Tick:
        with self._lock:
            self._enter("tick", worker, [claim.task_id for claim in held])
            ours = {claim.task_id for claim in held if self._ours(worker.worker_id, claim)}
            return Tick(
                lost=frozenset(claim.task_id for claim in held) - ours,
                cancelled=frozenset(task_id for task_id in ours if self.tasks[task_id].cancel),
                leader=self.leader and lead,
                command=self.command,
                overdue=self.overdue,
                registered=worker.worker_id in self.registered,
                busy=bool(held),
            )

    def promote(self, limit: int = 100, late_ms: int = 0) -> Promotion:
        self._enter("promote", limit, late_ms)
        return self.promotions.pop(0) if self.promotions else Promotion(0, None)

    def reclaim(self, limit: int = 100, late_ms: int = 0) -> int:
        self._enter("reclaim", limit, late_ms)
        return 0

    def sweep(self, limit: int = 200) -> int:
        self._enter("sweep", limit)
        return 0

    def check(self) -> bool:
        self._enter("check")
        return False

    def sample(self) -> None:
        self._enter("sample")

    def reconcile(self, limit: int = 200) -> Reconciliation:
        self._enter("reconcile", limit)
        return Reconciliation(0, 0, True)

    def resign(self, worker_id: str) -> None:
        self._enter("resign")
        self.leader = False

    def wake(self, queue: str) -> None:
        self._enter("wake", queue)
        self.wakes += 1
        self.bell.set()


class FakeBell:
    """A doorbell, or the leader's bell, of a fake broker."""

    def __init__(self, bell: threading.Event) -> None:
        self._bell = bell
        self._interrupted = False
        self.waits: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        rung = self._bell.wait(timeout_s)
        if self._interrupted:
            raise Interrupted
        if rung:
            self._bell.clear()
        return rung

    def interrupt(self) -> None:
        self._interrupted = True
        self._bell.set()

    def close(self) -> None:
        self.interrupt()


def worker_state(broker: FakeBroker, registry: Registry, **options: Any) -> WorkerState:
    """The state of a worker on a fake broker. options: fields of WorkerState, and settings by their names."""
    fields = {name: options.pop(name) for name in ("max_tasks", "burst") if name in options}
    settings = load_settings(env_file=None, redis_url="memory://", **options)
    return WorkerState(
        worker_id="w1",
        settings=settings,
        registry=registry,
        broker=cast(Broker, broker),
        queues=settings.queues,
        concurrency=settings.worker_concurrency,
        **fields,
    )
