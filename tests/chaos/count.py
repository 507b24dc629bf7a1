"""The reckoning of a chaos run: what was accepted against what became of it, and the ledger of the handlers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dtq.client import Client
from dtq.errors import TaskNotFound
from dtq.model import Task
from dtq.states import Disposition, Status
from tests.chaos.fleet import LEASE_S, Fleet
from tests.support.ledger import Run, read

CLOCK_SLACK_S = 0.05


@dataclass(slots=True, kw_only=True)
class Reckoning:
    """What must be zero, and what is told beside it."""

    accepted: int
    statuses: Counter[str]
    lost: list[str] = field(default_factory=list)
    run_after_success: list[str] = field(default_factory=list)
    beyond_maximum: list[str] = field(default_factory=list)
    two_at_once: list[str] = field(default_factory=list)
    beside_a_written_off_thread: int = 0
    """Runs that overlapped one that its worker had given up after its time limit."""
    beside_a_frozen_worker: int = 0
    """Runs that overlapped one whose process was stopped for longer than its lease: it learns of it when it goes on."""
    absorbed: int = 0
    stories: list[str] = field(default_factory=list)
    """What happened to each task that is named above, for who has to find out why."""

    @property
    def good(self) -> bool:
        """Whether all that must be zero is."""
        return not (self.lost or self.run_after_success or self.beyond_maximum or self.two_at_once)

    def lines(self) -> list[str]:
        """Return what a person reads."""
        wrong: Mapping[str, Sequence[str]] = {
            "lost": self.lost,
            "run again after their success was recorded": self.run_after_success,
            "failures or crashes beyond their maximum": self.beyond_maximum,
            "two at once": self.two_at_once,
        }
        told = [f"accepted: {self.accepted}", f"finished: {dict(self.statuses)}"]
        told += [f"{what}: {len(ids)}" + (f"  {ids[:5]}" if ids else "") for what, ids in wrong.items()]
        told.append(f"overlaps with a written-off thread: {self.beside_a_written_off_thread}")
        told.append(f"overlaps with a worker that was frozen beyond its lease: {self.beside_a_frozen_worker}")
        told.append(f"duplicates absorbed: {self.absorbed}")
        return told + self.stories[:5]


def reckon(client: Client, fleet: Fleet, accepted: Sequence[str], max_crashes: int = 3) -> Reckoning:
    """Compare the ids that were accepted with the records in Redis and the ledger."""
    runs = read(fleet.ledger, fleet.died)
    result = Reckoning(accepted=len(accepted), statuses=Counter())
    for task_id in accepted:
        try:
            task = client.get(task_id)
        except TaskNotFound:
            result.lost.append(task_id)
            continue
        result.statuses[task.status.value] += 1
        if not task.terminal:
            result.lost.append(task_id)
        if not _check(task, runs.get(task_id, []), fleet.stopped, result, max_crashes):
            result.stories.append(story(task, runs.get(task_id, []), fleet.stopped, fleet.died))
    totals = client.server.call("HGETALL", client.broker.keys.totals("default"))
    pairs = zip(totals[::2], totals[1::2], strict=True)
    result.absorbed = sum(int(number) for name, number in pairs if name.endswith(b":absorbed"))
    return result


def _check(
    task: Task, runs: list[Run], stopped: Mapping[int, Sequence[float]], result: Reckoning, max_crashes: int
) -> bool:
    """Returns whether all is well with the task."""
    before = _wrong(result)
    if task.failures > (task.max_attempts or 5) or task.crashes > max_crashes:
        result.beyond_maximum.append(task.task_id)
    if task.status is Status.SUCCEEDED and task.finished_at is not None:
        over = task.finished_at + CLOCK_SLACK_S
        if any(run.start > over for run in runs):
            result.run_after_success.append(task.task_id)
    timed_out = {one.number for one in task.attempts if one.outcome is Disposition.TIMED_OUT}
    for first, second in pairwise(runs):
        if second.start < first.end:
            if first.attempt in timed_out and first.worker == first.pid:  # in a thread, not in a process of its own
                result.beside_a_written_off_thread += 1
            elif any(first.start - LEASE_S <= moment <= second.start for moment in stopped.get(first.worker, [])):
                result.beside_a_frozen_worker += 1
            else:
                result.two_at_once.append(task.task_id)
    return _wrong(result) == before


def _wrong(result: Reckoning) -> int:
    return sum(map(len, (result.lost, result.run_after_success, result.beyond_maximum, result.two_at_once)))


def story(task: Task, runs: Sequence[Run], stopped: Mapping[int, Sequence[float]], died: Mapping[int, float]) -> str:
    """Return what is known of a task, in lines. Times are in seconds since its creation."""

    def since(moment: float | None) -> str:
        return "?" if moment is None else f"{moment - task.created_at:.3f}"

    lines = [f"{task.task_id} ({task.task_type}): {task.status.value}, finished at {since(task.finished_at)}"]
    for one in task.attempts:
        times = f"{since(one.started_at)} to {since(one.finished_at)}"
        lines.append(f"  attempt {one.number} by {one.worker_id}: {times}, {one.outcome.value}")
    for run in runs:
        harms = [f"stopped at {since(moment)}" for moment in stopped.get(run.worker, [])]
        harms += [f"died at {since(died[run.worker])}"] if run.worker in died else []
        times = f"{since(run.start)} to {since(run.end)}"
        lines.append(f"  handler of attempt {run.attempt} in process {run.worker}: {', '.join([times, *harms])}")
    return "\n".join(lines)
