"""Asks for work, only when there is room: claims in strict order, and gives back what does not start soon."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dtq.errors import RedisFull, RedisUnavailable
from dtq.model import Claim
from dtq.redisio import Interrupted
from dtq.worker.handback import SHUTDOWN_PATIENCE_S, give_back
from dtq.worker.pool import Pool
from dtq.worker.service import Service
from dtq.worker.state import Job, WorkerState, ids
from dtq.worker.suspects import Suspects

if TYPE_CHECKING:
    from dtq.streams import Doorbell

log = logging.getLogger(__name__)

AHEAD_S = 0.02
"""How much work is taken beyond free slots, by how long it takes."""
MAX_AHEAD = 64
LONG_S = 0.1
"""Of tasks this long, nothing is taken ahead."""
HOLD_S = 0.05
"""What has been held for this long without starting is given back."""
POLL_S = 5.0
"""An idle worker claims after this time without a ring: the safety net for a lost token."""
MAX_CLAIM = 32
MAX_BACKLOG = 512
"""With so many outcomes not recorded, nothing more is claimed."""


class Fetcher(Service):
    """The only one who claims. It waits for the doorbell when queues are empty, for a runner when slots are full."""

    def __init__(self, state: WorkerState, pool: Pool, doorbell: Doorbell, backlog: Callable[[], int]) -> None:
        """backlog: how many outcomes are not recorded yet."""
        super().__init__("fetcher", state.outage)
        self._state = state
        self._pool = pool
        self._doorbell = doorbell
        self._backlog = backlog
        self._suspects = Suspects(state, pool)
        self._unsettled = False
        """A claim's answer was lost: Redis may count tasks as this worker's that it knows nothing of."""
        self._work_likely = True
        self._waited = True
        """Since the last claim: tokens may have been taken that others would have woken for."""
        self._claimed_at = -math.inf
        self._last_types: frozenset[str] = frozenset()
        self._held_off_at: int | None = None
        """What the pool had finished when something was given back: until more is, nothing is taken ahead."""
        self._newer_said = False

    def interrupt(self) -> None:
        """Cut the wait short."""
        self._doorbell.interrupt()
        self._pool.room.ring()

    def step(self) -> bool:
        """Claim once, or wait for a reason to claim. Raises RedisUnavailable."""
        if self._unsettled:
            self._settle()
        self._give_back(time.monotonic() - HOLD_S)
        if self._suspects.busy:
            return self._suspects.step(self._stop)
        if not self._state.accepting or self._backlog() > MAX_BACKLOG or time.monotonic() < self._suspects.not_before:
            self._give_back(math.inf)
            self._pass_tokens_on()
            self._stop.wait(0.1)
            return True
        ahead = self._ahead(time.monotonic())
        limit = self._limit(ahead)
        if limit <= 0 or (self._all_busy and self._pool.waiting > ahead // 2):
            self._wait_for_room(ahead)
        elif self._work_likely or time.monotonic() - self._claimed_at >= POLL_S:
            self._claim(limit)
        else:
            self._wait_for_work()
        return True

    def finish(self) -> None:
        """Give back at once what has not started: others can have it."""
        jobs = self._pool.take_back(math.inf)
        suspect = self._suspects.drop()
        if suspect is not None:
            jobs.append(suspect)
        if self._unsettled:
            self._settle()
        give_back(self._state, jobs, patience_s=SHUTDOWN_PATIENCE_S)
        self._pass_tokens_on()

    # --- claiming -----------------------------------------------------------------------------------------------------

    def _claim(self, limit: int) -> None:
        state = self._state
        now, idle = time.monotonic(), not len(state.holdings)
        try:
            batch = state.broker.claim(state.worker_id, state.queues, limit, ring=self._waited)
        except RedisUnavailable:
            self._unsettled = True
            raise
        state.outage.over()
        self._waited = batch.taken_before
        self._claimed_at = now
        claims = batch.claims
        self._work_likely = bool(batch.more) or len(claims) >= limit
        self._unsettled = batch.taken_before
        if batch.newer and not self._newer_said:
            self._newer_said = True
            log.warning("met tasks that a newer dtq has written and left them alone: upgrade this worker")
        if claims:
            self._accept(claims, now)
        elif batch.more and not batch.absorbed and not batch.newer:
            self._stop.wait(0.05)  # work that is there but not to be had: its queue's tokens must not make this spin
        elif state.burst and idle and not self._work_likely:
            state.exhausted = True

    def _accept(self, claims: Sequence[Claim], now: float) -> None:
        state = self._state
        jobs = [Job(claim, now) for claim in claims]
        if claims[0].suspect or any(state.holdings.get(job.claim.task_id) is not None for job in jobs):
            jobs = self._without_those_that_run(jobs)
        for job in jobs:
            state.holdings.add(job)
        state.stats.claimed += len(claims)  # not sooner: nothing in the books and enough taken is an end
        if jobs and jobs[0].claim.suspect:
            self._suspects.take(jobs[0])
        elif jobs:
            self._last_types = frozenset([job.claim.task_type for job in jobs])
            self._pool.put(jobs)

    def _without_those_that_run(self, jobs: Sequence[Job]) -> list[Job]:
        """Give back the claims of tasks that this worker still runs under an older claim: never two at once."""
        kept: list[Job] = []
        refused: list[Job] = []
        for job in jobs:
            older = self._state.holdings.get(job.claim.task_id)
            if older is not None:
                log.warning(
                    "a task came back to this worker while it still held it under an older claim", extra=ids(job)
                )
                self._pool.stop_handler(older, lost=True)
            # Looked at now: what no runner has by now does not start any more, and what was off the books may run still
            (refused if self._pool.has_in_hand(job.claim.task_id) else kept).append(job)
        if refused:
            self._hand_back(refused)
            self._stop.wait(0.25)
        return kept

    def _settle(self) -> None:
        state = self._state
        given_back = state.broker.settle(state.worker_id, state.queues, state.holdings.ids())
        state.outage.over()
        self._unsettled, self._work_likely = False, True
        if given_back:
            log.info("gave back %d tasks whose claim got no answer", given_back)

    # --- how much -----------------------------------------------------------------------------------------------------

    def _limit(self, ahead: int) -> int:
        state = self._state
        limit = min(MAX_CLAIM, state.concurrency + ahead - self._pool.outstanding)
        if state.max_tasks is not None:
            limit = min(limit, state.max_tasks - state.taken)
        return limit

    @property
    def _all_busy(self) -> bool:
        return self._pool.outstanding >= self._state.concurrency

    def _ahead(self, now: float) -> int:
        """Return how many jobs to hold beyond what runs: about 20 ms of work, by what is known of those in hand."""
        finished = self._pool.finished
        if self._held_off_at is not None:
            if self._held_off_at == finished:
                return 0
            self._held_off_at = None
        fixed = self._state.settings.prefetch
        if fixed is not None:
            return min(fixed, MAX_CLAIM)
        expected_s = self._state.stats.durations.expected_s
        longest = 0.0
        for job in self._pool.running():
            longest = max(longest, expected_s(job.claim.task_type), now - job.started_at)
        if self._pool.waiting or now - self._claimed_at < HOLD_S:
            for task_type in self._last_types:
                longest = max(longest, expected_s(task_type))
        if not 0.0 < longest <= LONG_S:
            return 0
        return min(MAX_AHEAD, int(self._state.concurrency * AHEAD_S / longest))

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _wait_for_room(self, ahead: int) -> None:
        room = self._pool.room
        room.prepare(ahead // 2)
        if self._limit(ahead) > 0 and not (self._all_busy and self._pool.waiting > ahead // 2):
            room.waiting = False
        elif not self._stop.is_set():
            if self._work_likely:  # or a token is kept from an idle worker, taken while there seemed to be room ahead
                self._pass_tokens_on()
            room.wait(HOLD_S if self._pool.waiting else 1.0)

    def _wait_for_work(self) -> None:
        state = self._state
        if state.burst:  # tasks that run may submit others: look again soon
            self._stop.wait(0.02)
            self._work_likely = True
            return
        until_poll = self._claimed_at + POLL_S - time.monotonic()
        self._waited = True
        try:
            rung = self._doorbell.wait(HOLD_S if self._pool.waiting else max(0.001, until_poll))
        except Interrupted:  # this worker stops
            return
        except RedisUnavailable:
            self._work_likely = True  # a token may have been lost with the answer
            raise
        self._work_likely = self._work_likely or rung

    def _pass_tokens_on(self) -> None:
        """Ring for others, should this worker have taken tokens whose work it will not claim."""
        if self._waited:
            for queue in self._state.queues:
                self._state.broker.wake(queue)
            self._waited = False

    # --- giving back --------------------------------------------------------------------------------------------------

    def _give_back(self, claimed_before: float) -> None:
        jobs = self._pool.take_back(claimed_before)
        if jobs:
            self._held_off_at = self._pool.finished
            self._hand_back(jobs)

    def _hand_back(self, jobs: Sequence[Job]) -> None:
        try:
            give_back(self._state, jobs)
        except (RedisUnavailable, RedisFull):
            self._unsettled = True  # settling gives back what this call may have left
            raise
        self._work_likely = True
