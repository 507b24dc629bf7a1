"""The engine's writes: one method an event. Each is one Lua script, which does all of it or nothing."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from dtq import model, trace
from dtq.durability import Durability
from dtq.encoding import accepted_task, claim_from_reply, commit_item, plain, submit_item
from dtq.errors import (
    ConfigurationError,
    DtqError,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    QueueFull,
    RedisFull,
    RedisUnavailable,
    ScheduleFull,
    TooManyQueues,
)
from dtq.keys import Keys, digest
from dtq.limits import LONGEST_DRAIN_S, MemoryGuard, drain_seconds, script_limits
from dtq.model import Claim, HandlerPolicy, Outcome, Task, WorkerInfo
from dtq.redisio import Server
from dtq.scripts import Scripts
from dtq.settings import Settings
from dtq.states import Status
from dtq.streams import ring
from dtq.submission import Submission
from dtq.upkeep import Upkeep

ITEMS_A_SCRIPT = 100
LOCK_MS = 10_000
OVERDUE_MS = 1_000


class Replay(NamedTuple):
    """The submission repeats one whose task has ended: the answer is that task."""

    task_id: str


class ClaimBatch(NamedTuple):
    """What one claim took. A suspect comes alone."""

    claims: list[Claim]
    more: bool
    """Whether work is left in the queues."""
    absorbed: int
    """Tickets that stood for nothing and were removed."""
    newer: int
    """Tickets of a newer schema, set aside for a newer worker."""
    taken_before: bool = False
    """This very claim reached Redis before, and what it took went to nobody: settle."""


class Tick(NamedTuple):
    """What a worker is told once a second."""

    lost: frozenset[str]
    """Ids whose claim is over: stop them, drop their results."""
    cancelled: frozenset[str]
    leader: bool
    command: Literal["quiet", "stop"] | None
    overdue: bool
    """Something is due that the leader should have done."""
    registered: bool
    """False: the worker's record was gone; register again."""
    busy: bool
    """Whether anything runs in the queues that this worker looks after: of the leader, in all."""
    replaced: bool = False
    """Another process has taken this worker's name: end."""


class Holder(NamedTuple):
    """The process that has a worker's name, and its last heartbeat."""

    process: bytes
    """Tells starts apart; empty where an older dtq wrote the record."""
    host: str
    pid: int
    heartbeat: bytes


class Broker:
    """Changes the state of tasks, queues and workers. Safe to use from any thread.

    Every method raises RedisUnavailable when Redis is away and, where it would need memory, RedisFull.
    """

    def __init__(self, server: Server, settings: Settings, durability: Durability | None = None) -> None:
        """server: connected; nothing is sent yet. durability: what accepted submissions wait for."""
        self.server = server
        self.keys = Keys(settings.namespace)
        self.scripts = Scripts(server, self.keys, script_limits(settings))
        self._settings = settings
        self.upkeep = Upkeep(server, self.keys, self.scripts)
        """What the leader does, and others when it is late: promote, reclaim, sweep, reconcile."""
        self._memory = MemoryGuard(server)
        self._durability = durability
        self._process = secrets.token_hex(8)
        self._claim_numbers = itertools.count(1)
        self._claim_number = 0
        """Of the last claim that was sent."""

    # --- submitting ---------------------------------------------------------------------------------------------------

    def submit(
        self, submissions: Sequence[Submission], warnings: Sequence[Sequence[str]] | None = None
    ) -> list[Task | Replay | DtqError]:
        """Store submissions, a hundred a round trip; each is accepted or refused by itself, in order.

        warnings: for each submission, what its task is to say when it is accepted.
        Returns a task for each that was accepted, the id of the finished task for each that is its replay, and the
        error for each that was refused. When Redis goes away in the middle, that is the error of the rest: what was
        accepted is told.
        """
        self._memory.check()
        answers: list[Task | Replay | DtqError] = []
        waits: dict[str, int] = {}
        belongs_to = trace.carried()
        for start in range(0, len(submissions), ITEMS_A_SCRIPT):
            chunk = submissions[start : start + ITEMS_A_SCRIPT]
            ids = [model.new_task_id() for _ in chunk]
            items = [submit_item(task_id, one, belongs_to) for task_id, one in zip(ids, chunk, strict=True)]
            try:
                replies = self.scripts.run("task_submit", items=items)
            except (RedisUnavailable, RedisFull) as error:
                if not answers:
                    raise
                answers += [error] * (len(submissions) - start)
                break
            for index, reply in enumerate(replies):
                if isinstance(reply, bytes):  # when it was created
                    told = () if warnings is None else warnings[start + index]
                    answers.append(accepted_task(ids[index], chunk[index], int(reply), told))
                else:
                    answers.append(self._not_new(ids[index], chunk[index], reply, waits))
        return answers if self._durability is None else self._once_safe(answers, self._durability)

    def _once_safe(
        self, answers: list[Task | Replay | DtqError], durability: Durability
    ) -> list[Task | Replay | DtqError]:
        accepted = [answer.task_id for answer in answers if isinstance(answer, Task)]
        try:
            if accepted:
                durability.confirm(accepted)
        except (RedisUnavailable, ConfigurationError) as error:
            return [error if isinstance(answer, Task) else answer for answer in answers]
        return answers

    def _not_new(
        self, task_id: str, submission: Submission, reply: list[bytes], waits: dict[str, int]
    ) -> Task | Replay | DtqError:
        code, detail = reply
        if code == b"AGAIN":
            return accepted_task(task_id, submission, int(detail))
        if code == b"REPLAY":
            return Replay(detail.decode())
        if code == b"BUSY":
            task_id = detail.decode()
            return IdempotencyInProgress(
                f"task {task_id} with this idempotency key has not finished; ask for that task", task_id=task_id
            )
        if code == b"REUSED":
            task_id = detail.decode()
            return IdempotencyKeyReused(
                f"task {task_id} used this idempotency key with another body; use a fresh key", task_id=task_id
            )
        if code == b"TOO_MANY_QUEUES":
            return TooManyQueues(
                f"there are {int(detail)} queues already (DTQ_MAX_QUEUES); use one of them", retry_after=60
            )
        if code == b"SCHEDULE_FULL":
            return ScheduleFull(
                f"{int(detail)} delayed tasks wait already (DTQ_MAX_SCHEDULED); try again later", retry_after=60
            )
        return self._queue_full(submission.queue, int(detail), waits)

    def _queue_full(self, queue: str, depth: int, waits: dict[str, int]) -> QueueFull:
        """waits: by queue, what was found out for the same batch already."""
        if queue not in waits:
            try:
                waits[queue] = drain_seconds(self.server, self.keys, queue, depth)
            except RedisUnavailable:  # it was there a moment ago, and what it answered is still true
                waits[queue] = LONGEST_DRAIN_S
        return QueueFull(
            f"queue {queue} holds {depth} tasks (DTQ_MAX_QUEUE_DEPTH); try again in {waits[queue]} s",
            retry_after=waits[queue],
            depth=depth,
        )

    # --- claiming and finishing ---------------------------------------------------------------------------------------

    def claim(self, worker_id: str, queues: Sequence[str], limit: int, *, ring: bool = True) -> ClaimBatch:
        """Take up to `limit` tasks (at most 100) in strict order: queues as given, bands 9 to 0, first in first out.

        ring: wake another worker when something is left. It may be left out by who has not waited since its last claim,
        and so has taken nobody's token.
        Never repeated: after RedisUnavailable call `settle`, since the tasks may have been given to this worker. For
        one thread at a time of each worker: a claim that another one has overtaken takes nothing.
        """
        self._claim_number = next(self._claim_numbers)
        claims, more, absorbed, newer, taken_before = self.scripts.run(
            "task_claim",
            items=[(queue,) for queue in queues],
            repeat=False,
            worker=worker_id,
            limit=min(limit, ITEMS_A_SCRIPT),
            ring="1" if ring else "0",
            process=self._process,
            number=self._claim_number,
        )
        return ClaimBatch([claim_from_reply(raw) for raw in claims], more == 1, absorbed, newer, taken_before == 1)

    def settle(self, worker_id: str, queues: Sequence[str], held: Collection[str]) -> int:
        """Give back, to the front, what this worker's name owns and the worker does not hold.

        held: ids of all that it holds, recorded outcomes on their way included.
        Returns how many tasks were given back.
        """
        items = [(task_id,) for task_id in held]
        given_back = 0
        for queue in queues:
            while True:
                step = self.scripts.run(
                    "task_settle",
                    items=items,
                    worker=worker_id,
                    queue=queue,
                    limit=ITEMS_A_SCRIPT,
                    process=self._process,
                    number=self._claim_number,
                )
                given_back += step
                if step < ITEMS_A_SCRIPT:
                    break
        return given_back

    def start_suspect(self, worker_id: str, claim: Claim, alone: bool) -> bool:
        """Write down that a suspect starts, before its handler runs. False: the lease was lost, do not run it.

        alone: whether nothing runs beside it in its worker; may be withdrawn by a second call.
        """
        return bool(
            self.scripts.run(
                "task_start", id=claim.task_id, claimed_seq=claim.seq, worker=worker_id, alone="1" if alone else "0"
            )
        )

    def commit(self, worker_id: str, outcomes: Sequence[Outcome]) -> list[Status | None]:
        """Record outcomes, as many as come, in scripts of up to a hundred, each fenced by its claim.

        Returns the status that each task has now; None where the lease was lost and nothing was written. A repeat
        gets the first answer, so it may be called again until it answers.
        """
        statuses: list[Status | None] = []
        for start in range(0, len(outcomes), ITEMS_A_SCRIPT):
            chunk = outcomes[start : start + ITEMS_A_SCRIPT]
            replies = self.scripts.run("task_commit", items=map(commit_item, chunk), worker=worker_id)
            statuses += [_status(reply) for reply in replies]
        return statuses

    def hand_back(self, worker_id: str, claims: Sequence[Claim]) -> int:
        """Give tasks back to the front of their bands, their starts not counted. Returns how many were still ours."""
        given_back = 0
        for start in range(0, len(claims), ITEMS_A_SCRIPT):
            items = [(claim.task_id, claim.seq) for claim in claims[start : start + ITEMS_A_SCRIPT]]
            given_back += sum(self.scripts.run("task_hand_back", items=items, worker=worker_id))
        return given_back

    def progress(self, worker_id: str, claim: Claim, fraction: float, message: str) -> bool:
        """Publish how far a task is. fraction: 0 to 1. Returns False when the lease was lost.

        Raises ValueError for a fraction that is not a finite number.
        """
        progress = model.dumps({"fraction": fraction, "message": plain(message)})
        return bool(
            self.scripts.run(
                "task_progress", id=claim.task_id, claimed_seq=claim.seq, worker=worker_id, progress=progress
            )
        )

    # --- workers ------------------------------------------------------------------------------------------------------

    def register(self, worker: WorkerInfo, handlers: Mapping[str, HandlerPolicy]) -> None:
        """Publish a worker, its lease and its handlers; again whenever `tick` says that the record was gone."""
        lease_ms = round(worker.lease_s * 1000)
        keep_ms = max(round(self._settings.heartbeat_interval_s * 3000), lease_ms, 3000)
        fields: list[tuple[str, str | int]] = [
            ("queues", ",".join(worker.queues)),
            ("concurrency", worker.concurrency),
            ("host", worker.host),
            ("pid", worker.pid),
            ("process", self._process),
            ("version", worker.version),
            ("handlers", model.dumps({name: policy._asdict() for name, policy in handlers.items()})),
            ("status", _worker_status(worker)),
        ]
        for name, policy in handlers.items():
            attempts = policy.max_attempts or model.DEFAULT_MAX_ATTEMPTS
            timeout_ms = policy.timeout_ms or self._settings.task_timeout_ms
            fields.append((f"policy:{name}", f"{attempts} {timeout_ms}"))
        asked_at = time.monotonic()
        now_ms, _ = self.scripts.run(
            "worker_register", items=fields, worker=worker.worker_id, lease_ms=lease_ms, keep_ms=keep_ms
        )
        self.upkeep.note_time(int(now_ms) / 1000, asked_at)

    def tick(self, worker: WorkerInfo, held: Sequence[Claim], *, lead: bool = True) -> Tick:
        """Say and ask, in one call, all that a worker does once a second.

        held: claims whose leases are renewed, those that this worker still owns. lead: whether to take the leader's
        lock when it is free, and keep it.
        """
        registered, leader, command, overdue, lost, cancelled, busy = self.scripts.run(
            "worker_tick",
            items=[(claim.task_id, claim.seq) for claim in held],
            worker=worker.worker_id,
            process=self._process,
            status=_worker_status(worker),
            queues=",".join(worker.queues),
            lead="1" if lead else "0",
            lock_ms=LOCK_MS,
            late_ms=OVERDUE_MS,
        )
        return Tick(
            lost=frozenset(task_id.decode() for task_id in lost),
            cancelled=frozenset(task_id.decode() for task_id in cancelled),
            leader=leader == 1,
            command=command.decode() if command in (b"quiet", b"stop") else None,
            overdue=overdue == 1,
            registered=registered != 0,
            replaced=registered == 2,
            busy=busy == 1,
        )

    def holder_of(self, worker_id: str) -> Holder | None:
        """Return who has a worker's name, other than this very process; None when nobody has."""
        process, host, pid, heartbeat = self.server.call(
            "HMGET", self.keys.worker(worker_id), "process", "host", "pid", "heartbeat"
        )
        if heartbeat is None or process == self._process.encode():
            return None
        return Holder(process or b"", (host or b"").decode(), int(pid or 0), heartbeat)

    def deregister(self, worker_id: str, queues: Sequence[str] = ()) -> None:
        """End a worker's record, its leadership and its consumers that have nothing pending."""
        self.scripts.run("worker_leave", worker=worker_id, gone="")
        self.upkeep.forget(worker_id, queues)

    def resign(self, worker_id: str) -> None:
        """Give the leader's lock up, if this worker has it, so that another takes over at once."""
        self.scripts.run("worker_resign", worker=worker_id)

    # --- side effects of handlers -------------------------------------------------------------------------------------

    def begin_operation(self, key: str, token: str, hold_s: float) -> tuple[str, str | float]:
        """Take a key for one run of a side effect.

        Returns ("RUN", 0), ("BUSY", seconds until the other caller's hold ends) or ("DONE", its result as JSON).
        """
        reply = self.scripts.run("operation_begin", digest=digest(key), token=token, hold_ms=round(hold_s * 1000))
        if reply[0] == b"DONE":
            return "DONE", reply[1].decode()
        return ("RUN", 0.0) if reply[0] == b"RUN" else ("BUSY", max(0, reply[1]) / 1000)

    def end_operation(self, key: str, token: str, result: str | None, ttl_s: float) -> bool:
        """Store the result (JSON) for `ttl_s` seconds, or free the key (None). False: the hold had ended."""
        return bool(
            self.scripts.run(
                "operation_end", digest=digest(key), token=token, result=result or "", ttl_ms=round(ttl_s * 1000)
            )
        )

    # --- waking -------------------------------------------------------------------------------------------------------

    def wake(self, queue: str) -> None:
        """Ring for one idle worker of a queue."""
        ring(self.server, self.keys, queue)


def _worker_status(worker: WorkerInfo) -> str:
    return model.dumps(
        {
            "state": worker.state,
            "running": worker.running,
            "held": worker.held,
            "abandoned_threads": worker.abandoned_threads,
        }
    )


def _status(reply: bytes) -> Status | None:
    try:
        return Status(reply.decode())
    except ValueError:  # nothing was written: another one's by now, or its record says what no status is
        return None
