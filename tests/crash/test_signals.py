"""Workers that are told to end, or stand still: at any moment, twice, while Redis is away."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtq.states import Disposition, Status
from tests.crash.conftest import Field, FieldFactory
from tests.support.nursery import Worker
from tests.support.waiting import wait_until


def test_claim_24_a_worker_that_stood_still_for_three_leases_writes_nothing_says_so_once_and_works_on(
    field: Field,
) -> None:
    """Four handlers in the middle of their work, and the claims of four tasks in one hand."""
    first = field.spawn("first", visibility_timeout_s=1)
    ids = [field.submit("nap", {"seconds": 1.5}) for _ in range(4)]
    wait_until(lambda: len(field.runs()) == 4, "the starts", 15)
    first.signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    second = field.spawn("second", visibility_timeout_s=1)
    done = [field.done(one) for one in ids]
    assert {(task.worker_id, task.result, task.attempt) for task in done} == {("second", 2, 2)}
    time.sleep(max(0.0, stopped_at + 3 - time.monotonic()))
    first.signal(signal.SIGCONT)
    wait_until(lambda: _told(first) == 4, f"the word about all four:\n{first.log}", 15)
    second.stop()
    after = field.done(field.submit("quick"))
    assert after.worker_id == "first", "it works on"
    for before in done:
        assert field.task(before.task_id) == before, "nothing was written"
    assert _told(first) == 4, first.log
    assert all("claims are over" in line for line in first.lines()), "and of nothing else"
    assert len(first.lines()) <= 2
    assert first.stop() == 0


def _told(worker: Worker) -> int:
    """Of how many claims it was said that they are over."""
    return sum(map(int, re.findall(r"claims are over, .* nothing was written: (\d+)", worker.log)))


@pytest.mark.slow
def test_a_process_of_a_handler_does_not_outlive_the_lease_of_a_worker_that_stands_still(field: Field) -> None:
    """It is another process, which nobody has stopped: beside its retry there would be two."""
    first = field.spawn("first", visibility_timeout_s=1)
    task_id = field.submit("isolated.nap", {"seconds": 2.5})
    wait_until(lambda: field.runs().get(task_id), "the start", 20)
    first.signal(signal.SIGSTOP)
    stopped_at = time.time()
    field.spawn("second", visibility_timeout_s=1)
    done = field.done(task_id)
    assert (done.worker_id, done.attempt) == ("second", 2)
    runs = field.runs()[task_id]
    assert not runs[0].ended, "it was ended, it did not end"
    assert not _is_alive(runs[0].pid)
    assert runs[1].start > stopped_at + 0.9
    first.signal(signal.SIGCONT)
    wait_until(lambda: _told(first) == 1, "the word about it", 15)
    assert field.done(field.submit("isolated.quick")).status is Status.SUCCEEDED
    assert first.stop() == 0
    assert len(first.lines()) == 1, first.log


def test_a_process_that_holds_its_interpreter_ends_with_its_worker_and_so_do_its_children(
    field: Field, tmp_path: Path
) -> None:
    """No thread of it gets to run: the kernel must end it."""
    first = field.spawn("first")
    file = tmp_path / "pids"
    field.submit("isolated.holds", {"file": str(file)})
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), "the start", 20)
    time.sleep(0.1)  # until it is inside the call
    pids = [int(pid) for pid in file.read_text().split()]
    assert all(map(_is_alive, pids))
    first.kill()
    wait_until(lambda: not any(map(_is_alive, pids)), "their end", 10)


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("signals", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_life_01_a_signal_at_any_moment_loses_nothing_counts_nothing_and_repeats_nothing(
    field: Field, signals: int
) -> None:
    """Fifteen workers that are told to end while they start, claim, run or wait; then one that does the rest."""
    dice = random.Random(signals)
    ids = [field.submit("nap", {"seconds": 0.02}, delay_seconds=dice.choice([0, 0, 0.5, 2])) for _ in range(150)]
    for turn in range(15):
        worker = field.spawn(f"w{turn}", ready=turn % 3 > 0)
        time.sleep(dice.uniform(0.0, 0.25))
        for _ in range(signals):
            worker.signal(signal.SIGTERM)
            time.sleep(dice.uniform(0.0, 0.05))
        assert worker.wait() in ((0, 1) if turn % 3 else (0, 1, -signal.SIGTERM)), worker.log
        assert worker.lines("ERROR") == []
    field.spawn("last", worker_concurrency=8)
    for one in ids:
        task = field.done(one)
        assert (task.attempt, task.failures, task.crashes) == (1, 0, 0)
    runs = field.runs()
    for one in ids:
        # with one signal all ends well; after a second one what ran is interrupted, and runs again
        assert len(runs[one]) == 1 if signals == 1 else all(run.ended for run in runs[one])
        assert all(earlier.end <= later.start for earlier, later in zip(runs[one], runs[one][1:], strict=False))


def test_claim_22_ten_rolling_restarts_under_load_lose_nothing_and_start_nothing_again(field: Field) -> None:
    """Three workers, each restarted in turn while a producer goes on: signals in the middle of everything."""
    ids: list[str] = []
    stop = threading.Event()

    def produce() -> None:
        dice = random.Random(22)
        while not stop.wait(0.004):
            ids.append(field.submit("nap", {"seconds": 0.01}, delay_seconds=dice.choice([0, 0, 0, 0.3, 1.0])))

    producer = threading.Thread(target=produce)
    producer.start()
    workers = [field.spawn(f"w{number}") for number in range(3)]
    for turn in range(10):
        time.sleep(0.15)
        assert workers[turn % 3].stop() == 0, workers[turn % 3].log
        workers[turn % 3] = field.spawn(f"w{turn % 3}")
    stop.set()
    producer.join(10)
    for one in ids:
        assert field.done(one).attempt == 1
    assert len(ids) > 100
    assert {task_id: len(runs) for task_id, runs in field.runs().items()} == dict.fromkeys(ids, 1)


@pytest.mark.parametrize("away", ["kill", pytest.param("pause", marks=pytest.mark.slow)])
def test_claim_22_a_signal_while_redis_is_away_ends_in_time_with_few_words_and_all_is_done_in_the_end(
    make_field: FieldFactory, server_factory: Callable[..., Any], away: str
) -> None:
    """One task has ended already, one is running, one was claimed or not: nobody can be told."""
    process = server_factory("valkey", aof=True, options=("--appendfsync", "always"))
    field = make_field(process.url, drain_timeout_s=0.5, worker_concurrency=2)
    first = field.spawn("first")
    ids = [field.submit("nap", {"seconds": seconds}) for seconds in (0.5, 20, 0.5, 0.5)]
    for one in ids[:2]:
        field.running(one)
    (process.kill if away == "kill" else process.pause)()
    time.sleep(0.7)
    began = time.monotonic()
    first.signal(signal.SIGTERM)
    assert first.wait() == 1
    assert time.monotonic() - began < 0.5 + 4 + 6, "the drain, what follows it, and a wide margin"
    assert "Traceback" not in first.log
    assert len(first.lines()) <= 5, first.log
    process.start() if away == "kill" else process.resume()
    field.spawn("second", worker_concurrency=4, drain_timeout_s=0)
    for one in (ids[0], *ids[2:]):
        assert field.done(one).failures == 0
    # lost, or handed back by what the worker had sent to the frozen server
    wait_until(lambda: field.task(ids[1]).worker_id == "second", "the next start of the last", 15)
    assert field.task(ids[1]).failures == 0


def test_life_06_a_second_signal_ends_the_wait_for_redis_too(
    make_field: FieldFactory, server_factory: Callable[..., Any]
) -> None:
    process = server_factory("valkey", aof=True, options=("--appendfsync", "always"))
    field = make_field(process.url)
    first = field.spawn("first")
    task_id = field.submit("nap", {"seconds": 0.3})
    field.running(task_id)
    process.kill()
    time.sleep(0.5)
    first.signal(signal.SIGTERM)
    time.sleep(0.5)
    began = time.monotonic()
    first.signal(signal.SIGTERM)
    assert first.wait() == 1
    assert time.monotonic() - began < 5


def test_threads_that_a_handler_left_behind_do_not_keep_the_process(field: Field) -> None:
    """As `python worker.py` would end: the interpreter waits for an executor's threads."""
    from tests.support.workers import Workers

    workers = Workers(field.url)
    try:
        worker = workers.spawn(tasks="tests.crash.handlers")
        field.done(field.submit("leaves.threads"))
        began = time.monotonic()
        assert worker.stop() == 0
        assert time.monotonic() - began < 10
    finally:
        workers.close()


def test_a_copy_that_a_handler_forked_ends_where_the_handler_does(field: Field) -> None:
    """It has the worker's inbox, its claims and its connections: going on it would run what is not its own."""
    field.spawn("first", worker_concurrency=1, prefetch=8)
    for task_type in ("forks", "isolated.forks"):
        ids = [field.submit(task_type, {"raises": number % 2 == 1}) for number in range(4)]
        ids += [field.submit("quick") for _ in range(4)]
        results = [field.done(one).result for one in ids]
        assert results == [0, 1, 0, 1, 1, 1, 1, 1]
        runs = field.runs()
        assert [len(runs[one]) for one in ids] == [1] * 8


def test_life_09_handlers_that_never_return_are_given_up_and_end_in_an_orderly_restart(
    field: Field, tmp_path: Path
) -> None:
    """A lock, a call of C, a loop that swallows whatever is raised in it."""
    from tests.support.workers import Workers

    workers = Workers(field.url, tmp_path)
    try:
        os.environ["TESTS_LEDGER"] = str(tmp_path / "ledger")
        parent = workers.spawn(
            "--processes", "2", "--concurrency", "2", tasks="tests.crash.handlers", ready=False,
            timeout_grace_s=0.2, max_abandoned_threads=1, retry_base_delay=0.1,
        )  # fmt: skip
        ids = [field.submit("hangs", {"how": how}) for how in ("lock", "call", "deaf", "call")]
        for one in ids:
            task = field.done(one, 30)
            assert (task.attempt, task.failures, task.crashes) == (2, 1, 0)
            assert task.attempts[0].outcome is Disposition.TIMED_OUT
        wait_until(lambda: "exit code 71; it is started again" in parent.log, "the restart", 20)
        assert field.done(field.submit("quick")).status is Status.SUCCEEDED
        assert parent.stop() in (0, 71)
    finally:
        del os.environ["TESTS_LEDGER"]
        workers.close()
