"""Giving tasks back to their queue: at the front, at once claimable by others, and not counted as an attempt."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dtq.errors import RedisFull, RedisUnavailable
from dtq.model import Claim
from dtq.worker.state import Job, WorkerState

SHUTDOWN_PATIENCE_S = 2.0
"""How long a worker that ends tries to give back: longer than a lost connection, shorter than anybody waits."""
RETRY_PAUSE_S = 0.2


def give_back(state: WorkerState, jobs: Sequence[Job], patience_s: float = 0.0) -> int:
    """Strike jobs out of the books and hand their tasks back; those whose claim is over are only struck out.

    patience_s: for how long to try again when Redis is away; repeating does no harm.
    Returns how many were still this worker's. Raises RedisUnavailable or RedisFull: settle later, or let leases end.
    """
    state.returning = len(jobs)
    try:
        for job in jobs:
            state.holdings.remove(job)
        given_back = _hand_back(state, [job.claim for job in jobs if not job.lost], patience_s)
        state.stats.handed_back += given_back
    finally:
        state.returning = 0
    return given_back


def _hand_back(state: WorkerState, claims: Sequence[Claim], patience_s: float) -> int:
    if not claims:
        return 0
    give_up_at = time.monotonic() + patience_s
    while True:
        try:
            return state.broker.hand_back(state.worker_id, claims)
        except (RedisUnavailable, RedisFull):
            if time.monotonic() >= give_up_at:
                raise
            time.sleep(RETRY_PAUSE_S)
