"""Handlers in a process of their own: whatever becomes of it is an attempt's failure, never the worker's."""

from __future__ import annotations

import time

from dtq.model import Task
from tests.crash.conftest import Field

DEATHS: list[tuple[dict[str, object], str]] = [
    ({"how": "segfault"}, "SIGSEGV"),
    ({"how": "exit", "code": 0}, "exit code 0"),
    ({"how": "exit", "code": 139}, "exit code 139"),
    ({"how": "killed"}, "SIGKILL"),  # as the kernel does when memory runs out
    ({"how": "closes everything"}, ""),
]


def test_the_death_of_its_process_is_a_failed_attempt_and_its_neighbours_hear_nothing_of_it(field: Field) -> None:
    worker = field.spawn(worker_concurrency=len(DEATHS) + 2)
    beside = [field.submit("nap", {"seconds": 1.0}), field.submit("isolated.nap", {"seconds": 1.0})]
    ids = [field.submit("isolated.dies", payload) for payload, _ in DEATHS]
    for task_id, (_, words) in zip(ids, DEATHS, strict=True):
        dying = field.done(task_id, 40)
        assert (dying.attempt, dying.failures, dying.crashes) == (2, 1, 0)
        assert dying.attempts[0].error_class == "ProcessDied"
        assert words in (dying.attempts[0].message or "")
    for one in beside:
        task = field.done(one)
        assert (task.attempt, task.failures) == (1, 0)
    assert worker.poll() is None
    assert len(worker.lines("ERROR")) == len(DEATHS)
    assert worker.stop() == 0


def test_a_task_that_is_isolated_starts_within_milliseconds_once_its_process_is_there(field: Field) -> None:
    """Against the same handler in a thread, as far as a client can see; the start of the process is paid once."""
    field.spawn(worker_concurrency=1)
    median_s = {}
    for task_type in ("quick", "isolated.quick"):
        field.done(field.submit(task_type))
        took = []
        for _ in range(60):
            task = field.done(field.submit(task_type))
            took.append(_start_of(field, task) - (task.started_at or 0.0))
        median_s[task_type] = sorted(took)[len(took) // 2]
        time.sleep(0.1)
    assert median_s["isolated.quick"] - median_s["quick"] < 0.005 * 5, "5 ms, and room for a busy machine"


def _start_of(field: Field, task: Task) -> float:
    return field.runs()[task.task_id][0].start
