"""Ids and times, as every record carries them."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from dtq.model import new_task_id, rfc3339


def test_ids_are_uuids_of_version_7_that_sort_by_time() -> None:
    before = time.time_ns() // 1_000_000
    task_id = new_task_id()
    assert before <= int(task_id[:12], 16) <= time.time_ns() // 1_000_000
    assert (task_id[12], task_id[16] in "89ab", len(task_id)) == ("7", True, 32)
    time.sleep(0.002)
    assert new_task_id() > task_id


def test_no_two_threads_draw_the_same_id() -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = [
            task_id
            for found in pool.map(lambda _: [new_task_id() for _ in range(2_000)], range(8))
            for task_id in found
        ]
    assert len({task_id[13:] for task_id in ids}) == 16_000


def test_a_fork_does_not_repeat_the_ids_of_its_parent() -> None:
    """Random bytes are drawn ahead: those in hand at a fork belong to the parent alone."""
    new_task_id()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, "".join(new_task_id()[13:] for _ in range(100)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    theirs = {text[at : at + 19] for at in range(0, len(text), 19)}
    assert len(theirs) == 100
    assert theirs.isdisjoint({new_task_id()[13:] for _ in range(100)})


@pytest.mark.parametrize(
    "seconds", [0.0, 0.0004, 1764509999.1234, 1764509999.9996, 4102444799.999, 253402300799.0], ids=str
)
def test_times_are_told_in_utc_to_the_millisecond(seconds: float) -> None:
    expected = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    assert rfc3339(seconds) == expected.replace("+00:00", "Z")


def test_a_start_in_the_millisecond_of_the_creation_is_not_told_before_it() -> None:
    created_us = 1764509999123900
    assert rfc3339(created_us / 1e6) == rfc3339(created_us // 1000 / 1000) == "2025-11-30T13:39:59.123Z"


def test_no_time_is_none() -> None:
    assert rfc3339(None) is None
