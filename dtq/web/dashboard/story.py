"""What happened to a task: one sentence, and its attempts on a line of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dtq.model import Attempt, Task
from dtq.states import Disposition, Status
from dtq.web.dashboard.words import ago, duration, plural

LONGEST_SHARE = 0.6
"""A wait that would take more of the line is cut: else the runs beside a long wait could not be seen."""
LEAST_PERCENT = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A piece of the line."""

    kind: Literal["wait", "run", "ahead"]
    """ahead: a wait that lasts on."""
    start: float
    """Percent of the line."""
    length: float
    seconds: float
    outcome: str = ""
    """The status whose colour a run has."""
    cut: bool = False
    """Whether it is drawn shorter than it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One attempt, and the wait before it. A mark of an operator, or what lies ahead, is a row too."""

    attempt: Attempt | None
    spans: Sequence[Span]
    waited_s: float | None
    ran_s: float | None
    outcome: str
    """A status, for colour and icon."""
    said: str


_COLOURS = {
    Disposition.SUCCEEDED: "succeeded",
    Disposition.FAILED: "dead_lettered",
    Disposition.TIMED_OUT: "dead_lettered",
    Disposition.CANCELLED: "cancelled",
    Disposition.LOST: "retrying",
    Disposition.REQUEUED: "queued",
}
_OUTCOMES = {
    Disposition.SUCCEEDED: "succeeded",
    Disposition.FAILED: "failed",
    Disposition.TIMED_OUT: "timed out",
    Disposition.CANCELLED: "cancelled",
    Disposition.LOST: "lost with its worker",
    Disposition.REQUEUED: "requeued",
}


def sentence(task: Task, now: float) -> str:
    """Return the task's story in a sentence. now: seconds since the epoch on Redis's clock."""
    return _TELLERS[task.status](task, now)


def _pending(task: Task, now: float) -> str:
    return f"It starts {ago(now - (task.available_at or now))}."


def _queued(task: Task, now: float) -> str:
    waited = duration(now - (task.available_at or task.created_at))
    again = f" for its attempt {task.attempt + 1}" if task.attempt else ""
    return f"It has been waiting{again} for {waited}, at priority {task.priority}."


def _running(task: Task, now: float) -> str:
    said = f"{_attempt(task)} has been running for {duration(now - (task.started_at or now))}"
    said += f" on {task.worker_id}" if task.worker_id else ""
    if task.cancel_requested:
        return f"{said}; its worker was asked to cancel it."
    progress = task.progress or {}
    if "fraction" in progress:
        said += f", {progress['fraction']:.0%} done"
        said += f": {progress['message']}" if progress.get("message") else ""
    return f"{said}."


def _retrying(task: Task, now: float) -> str:
    return f"{_attempt(task)} failed{_with_error(task)}; the next one starts {ago(now - (task.available_at or now))}."


def _succeeded(task: Task, now: float) -> str:
    took = duration((task.finished_at or now) - task.created_at)
    last = task.attempts[-1] if task.attempts else None
    ran_s = _ran(last) if last is not None and last.outcome is Disposition.SUCCEEDED else None
    ran = duration((task.finished_at or now) - (task.started_at or now) if ran_s is None else ran_s)
    tries = "" if task.attempt <= 1 else f" on attempt {task.attempt}"
    return f"It succeeded{tries}: {ran} of work, {took} after it was submitted."


def _dead(task: Task, now: float) -> str:
    told = {
        "exhausted": f"It failed for good after {plural(task.attempt, 'attempt')}{_with_error(task)}.",
        "permanent": f"{_attempt(task)} failed{_with_error(task)}, which no further attempt would mend.",
        "worker_crashed": f"It took {plural(task.crashes, 'worker')} down with it, and is not run again.",
        "unknown_task_type": "No worker knew its type in time.",
        "undecodable": "Its record could not be read.",
    }
    said = told.get(task.reason or "", f"It failed for good{_with_error(task)}.")
    if task.discarded:
        return f"{said} It was given up."
    return said if task.status is Status.DEAD_LETTERED else f"{said} It is not among the dead letters."


def _cancelled(task: Task, now: float) -> str:
    after = duration((task.finished_at or now) - task.created_at)
    why = f": {task.reason}" if task.reason else ""
    return f"It was cancelled {after} after it was submitted{why}."


def _expired(task: Task, now: float) -> str:
    return (
        f"Its time ran out before it started, {duration((task.finished_at or now) - task.created_at)} after it began."
    )


_TELLERS = {
    Status.PENDING: _pending,
    Status.QUEUED: _queued,
    Status.RUNNING: _running,
    Status.RETRYING: _retrying,
    Status.SUCCEEDED: _succeeded,
    Status.FAILED: _dead,
    Status.DEAD_LETTERED: _dead,
    Status.CANCELLED: _cancelled,
    Status.EXPIRED: _expired,
}


def _attempt(task: Task) -> str:
    return f"Attempt {task.attempt} of {task.max_attempts}" if task.max_attempts else f"Attempt {task.attempt}"


def _with_error(task: Task) -> str:
    name = (task.error or {}).get("class")
    return f" with {name}" if name else ""


# --- the line of time -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Piece:
    row: int
    kind: Literal["wait", "run", "ahead"]
    begins: float
    ends: float
    outcome: str = ""


def rows(task: Task, now: float) -> list[Row]:
    """Return the attempts in order, each with its pieces of one line of time, and what lies ahead."""
    pieces: list[_Piece] = []
    made: list[tuple[Attempt | None, float | None, float | None, str, str]] = []
    free_at = task.created_at
    for attempt in task.attempts:
        begins, ends = attempt.started_at, attempt.finished_at
        if attempt.outcome is Disposition.REQUEUED:
            made.append((attempt, None, None, "queued", attempt.message or "requeued"))
            free_at = ends or free_at
            continue
        waited_s = None if begins is None else max(0.0, begins - free_at)
        ran_s = _ran(attempt)
        if begins is not None:
            pieces.append(_Piece(len(made), "wait", free_at, begins))
            ends = ends if ends is not None else begins + (ran_s or 0)
            pieces.append(_Piece(len(made), "run", begins, ends, _COLOURS[attempt.outcome]))
        made.append((attempt, waited_s, ran_s, _COLOURS[attempt.outcome], _OUTCOMES[attempt.outcome]))
        free_at = ends if ends is not None else free_at
    if task.status is Status.RUNNING:
        begins = task.started_at or now
        pieces += [_Piece(len(made), "wait", free_at, begins), _Piece(len(made), "run", begins, now, "running")]
        made.append((None, max(0.0, begins - free_at), max(0.0, now - begins), "running", "running"))
    elif not task.terminal:
        due = max(now, task.available_at or now)
        pieces.append(_Piece(len(made), "ahead", free_at, due))
        made.append((None, max(0.0, due - free_at), None, task.status.value, "to come"))
    spans = _laid_out(pieces)
    return [
        Row(
            attempt=attempt,
            waited_s=waited_s,
            ran_s=ran_s,
            outcome=outcome,
            said=said,
            spans=[span for piece, span in zip(pieces, spans, strict=True) if piece.row == number],
        )
        for number, (attempt, waited_s, ran_s, outcome, said) in enumerate(made)
    ]


def _ran(attempt: Attempt) -> float | None:
    if attempt.duration_ms is not None:
        return attempt.duration_ms / 1000
    if attempt.started_at is None or attempt.finished_at is None:
        return None
    return max(0.0, attempt.finished_at - attempt.started_at)


def _laid_out(pieces: Sequence[_Piece]) -> list[Span]:
    """Place the pieces one after the other; long waits are cut, and each can be seen."""
    lengths = [max(0.0, piece.ends - piece.begins) for piece in pieces]
    longest = max(lengths, default=0.0)
    limit = LONGEST_SHARE / (1 - LONGEST_SHARE) * (sum(lengths) - longest) or longest
    drawn = [
        min(length, limit) if piece.kind != "run" else length for piece, length in zip(pieces, lengths, strict=True)
    ]
    whole = sum(drawn) or 1.0
    percents = [max(100 * length / whole, LEAST_PERCENT) for length in drawn]
    scale = 100 / sum(percents) if percents else 1.0
    spans, start = [], 0.0
    for piece, length, shown, percent in zip(pieces, lengths, drawn, percents, strict=True):
        spans.append(
            Span(
                kind=piece.kind,
                start=round(start, 2),
                length=round(percent * scale, 2),
                seconds=length,
                outcome=piece.outcome,
                cut=shown < length * 0.999,
            )
        )
        start += percent * scale
    return spans
