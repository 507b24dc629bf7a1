"""What a task can be, what can happen to it, and what it becomes: the one table of the contract's section 1.

The Lua scripts do the transitions; the conformance test seeds every status, fires every script and compares with
`TRANSITIONS`, so the table and the scripts cannot drift apart unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Status(StrEnum):
    """Where a task is in its life."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD_LETTERED = "dead_lettered"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Event(StrEnum):
    """What can happen to a task; each is one path through one script."""

    CLAIM = "claim"  # a worker takes it under a lease
    HAND_BACK = "hand_back"  # the worker gives it back unstarted or unfinished; not counted
    RECLAIM = "reclaim"  # the lease ended: it waits again, at the front of its band
    POISON = "poison"  # the lease ended for the last time that is allowed
    SUCCEED = "succeed"
    RETRY = "retry"  # the attempt failed and another one is due later
    SNOOZE = "snooze"  # the handler asked for later; not counted
    EXHAUST = "exhaust"  # the attempt failed and none is left, or none would help
    EXHAUST_UNKEPT = "exhaust_unkept"  # the same, with the dead-letter stream switched off
    PROMOTE = "promote"  # its time in the schedule has come
    CANCEL = "cancel"  # somebody asked; a running task is only told
    DROP = "drop"  # any end of an attempt after a cancel was recorded
    EXPIRE = "expire"  # its ttl ran out before it started
    REQUEUE = "requeue"  # an operator's decision
    DISCARD = "discard"  # an operator's decision: the entry goes, the record stays for its retention
    EVICT = "evict"  # the dead-letter stream is full and this is its oldest entry


class Disposition(StrEnum):
    """How one attempt ended, as the history tells it: what one run did, not what the task is."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"  # the worker died, or its lease ended
    REQUEUED = "requeued"  # not an attempt: an operator's mark between two of them


_S, _E = Status, Event

TRANSITIONS: Mapping[tuple[Status, Event], Status] = {
    (_S.PENDING, _E.PROMOTE): _S.QUEUED,
    (_S.PENDING, _E.CANCEL): _S.CANCELLED,
    (_S.PENDING, _E.EXPIRE): _S.EXPIRED,
    (_S.QUEUED, _E.CLAIM): _S.RUNNING,
    (_S.QUEUED, _E.CANCEL): _S.CANCELLED,
    (_S.QUEUED, _E.EXPIRE): _S.EXPIRED,
    (_S.RUNNING, _E.HAND_BACK): _S.QUEUED,
    (_S.RUNNING, _E.RECLAIM): _S.QUEUED,
    (_S.RUNNING, _E.POISON): _S.DEAD_LETTERED,
    (_S.RUNNING, _E.SUCCEED): _S.SUCCEEDED,
    (_S.RUNNING, _E.RETRY): _S.RETRYING,
    (_S.RUNNING, _E.SNOOZE): _S.PENDING,
    (_S.RUNNING, _E.EXHAUST): _S.DEAD_LETTERED,
    (_S.RUNNING, _E.EXHAUST_UNKEPT): _S.FAILED,
    (_S.RUNNING, _E.CANCEL): _S.RUNNING,
    (_S.RUNNING, _E.DROP): _S.CANCELLED,
    (_S.RETRYING, _E.PROMOTE): _S.QUEUED,
    (_S.RETRYING, _E.CANCEL): _S.CANCELLED,
    (_S.RETRYING, _E.EXPIRE): _S.EXPIRED,
    (_S.DEAD_LETTERED, _E.REQUEUE): _S.QUEUED,
    (_S.DEAD_LETTERED, _E.DISCARD): _S.FAILED,
    (_S.DEAD_LETTERED, _E.EVICT): _S.FAILED,
}
"""Every legal (status, event) -> status. What is not here is refused and changes nothing."""

TERMINAL: frozenset[Status] = frozenset({_S.SUCCEEDED, _S.FAILED, _S.DEAD_LETTERED, _S.CANCELLED, _S.EXPIRED})
"""The statuses with no way out except by an operator."""

BANDS: tuple[int, ...] = tuple(range(9, -1, -1))
"""The priority bands in the order in which they are claimed: 9, the most urgent, first."""
