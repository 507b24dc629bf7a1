"""The reckoning of a chaos run finds what it is there to find."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from dtq.encoding import accepted_task
from dtq.states import Status
from dtq.submission import Submission
from tests.chaos.count import Reckoning, _check, story
from tests.support.ledger import read as read_ledger

DONE = accepted_task("t1", Submission(task_type="quick"), 1_000_000_000_000)._replace(
    status=Status.SUCCEEDED,
    finished_at=100.0,
    max_attempts=5,
)


@pytest.fixture
def result():
    return Reckoning(accepted=1, statuses=Counter())


@pytest.fixture
def ledger(tmp_path):
    def write(*lines):
        path = tmp_path / "ledger"
        path.write_text(
            "".join(
                json.dumps(dict(zip(("what", "task", "attempt", "pid", "at"), line, strict=True))) + "\n"
                for line in lines
            )
        )
        return path

    return write


def check(task, runs, result, stopped=None):
    _check(task, runs.get("t1", []), stopped or {}, result, 3)
    return result


def test_one_run_after_the_other_is_good(ledger, result):
    runs = read_ledger(
        ledger(("start", "t1", 1, 7, 98), ("start", "t1", 2, 8, 99), ("end", "t1", 2, 8, 99.5)), {7: 98.5}
    )
    assert check(DONE, runs, result).good


def test_a_start_after_the_success_is_found(ledger, result):
    runs = read_ledger(ledger(("start", "t1", 1, 7, 99), ("end", "t1", 1, 7, 99.5), ("start", "t1", 2, 8, 101)), {})
    assert check(DONE, runs, result).run_after_success == ["t1"]


def test_two_at_once_are_found(ledger, result):
    lines = [("start", "t1", 1, 7, 98), ("start", "t1", 2, 8, 98.5), ("end", "t1", 1, 7, 99), ("end", "t1", 2, 8, 99)]
    assert check(DONE, read_ledger(ledger(*lines), {}), result).two_at_once == ["t1"]


def test_a_run_beside_a_frozen_worker_is_told_apart(ledger, result):
    lines = [("start", "t1", 1, 7, 98), ("start", "t1", 2, 8, 98.5), ("end", "t1", 1, 7, 99), ("end", "t1", 2, 8, 99)]
    check(DONE, read_ledger(ledger(*lines), {}), result, stopped={7: [98.1]})
    assert (result.two_at_once, result.beside_a_frozen_worker) == ([], 1)


def test_failures_and_crashes_beyond_their_maximum_are_found(result):
    check(DONE._replace(failures=6), {}, result)
    check(DONE._replace(crashes=4), {}, result)
    assert len(result.beyond_maximum) == 2
    assert not result.good


def test_the_story_of_what_went_wrong_is_told(ledger):
    runs = read_ledger(ledger(("start", "t1", 1, 7, 1e6 + 1), ("start", "t1", 2, 8, 1e6 + 3.5)), {7: 1e6 + 2.25})
    told = story(DONE._replace(finished_at=1e6 + 3), runs["t1"], {7: [1e6 + 1.5]}, {7: 1e6 + 2.25})
    assert told.splitlines() == [
        "t1 (quick): succeeded, finished at 3.000",
        "  handler of attempt 1 in process 7: 1.000 to 2.250, stopped at 1.500, died at 2.250",
        "  handler of attempt 2 in process 8: 3.500 to 3.500",
    ]


def test_what_is_wrong_is_told(result):
    result.lost.append("t9")
    assert any("lost: 1" in line and "t9" in line for line in result.lines())
