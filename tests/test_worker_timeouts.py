"""Interrupting a handler in its thread, and nothing but the handler."""

from __future__ import annotations

import random
import threading
import time

import pytest

from dtq.errors import TaskCancelled, TaskTimeout
from dtq.worker.timeouts import Guard, Watchdog


@pytest.fixture
def guards():
    return []


@pytest.fixture
def given_up():
    return []


@pytest.fixture
def watchdog(guards, given_up):
    made = Watchdog(lambda: list(guards), given_up.append)
    made.start()
    yield made
    made.stop()
    assert made.join(5)


@pytest.fixture
def guard(guards, watchdog):
    made = Guard(0.2, watchdog.watch)
    guards.append(made)
    return made


def spin(seconds):
    """Python code all the way: an exception can rise at any step."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        pass
    return "done"


def in_s(seconds):
    return time.monotonic() + seconds


def test_a_handler_that_returns_in_time_is_left_alone(guard):
    assert guard.call("job", lambda a, b: a + b, (1, 2), in_s(5))
    assert (guard.value, guard.error, guard.abandoned) == (3, None, False)


def test_a_handler_gets_the_timeout_at_its_deadline(guard):
    began = time.monotonic()
    assert not guard.call("job", spin, (10,), in_s(0.1))
    assert isinstance(guard.error, TaskTimeout)
    assert guard.timed_out
    assert 0.1 <= time.monotonic() - began < 1


def test_whatever_a_handler_raises_is_caught(guard):
    for kind in (ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError, RecursionError):

        def fail(kind=kind):
            raise kind

        assert not guard.call("job", fail, (), in_s(5))
        assert isinstance(guard.error, kind)
        guard.clear()


def test_a_cancelled_handler_gets_a_moment_and_then_the_exception(guard):
    threading.Timer(0.05, guard.cancel, args=("job", 0.1)).start()
    began = time.monotonic()
    assert not guard.call("job", spin, (10,), in_s(20))
    assert isinstance(guard.error, TaskCancelled)
    assert 0.14 <= time.monotonic() - began < 1
    assert not guard.timed_out


def test_a_cancellation_just_before_the_beginning_is_not_forgotten(guard):
    guard.cancel("job")
    began = time.monotonic()
    assert not guard.call("job", spin, (10,), in_s(20))
    assert isinstance(guard.error, TaskCancelled)
    assert time.monotonic() - began < 2
    assert guard.call("job", spin, (0.3,), in_s(20)), "once only"


def test_a_cancellation_of_another_job_touches_nobody(guard):
    threading.Timer(0.02, guard.cancel, args=("another", 0.0)).start()
    assert guard.call("job", spin, (0.1,), in_s(20))


def test_a_handler_that_swallows_its_cancellation_still_meets_its_time_limit(guard):
    caught = []

    def stubborn():
        for _ in range(2):
            try:
                spin(10)
            except (TaskCancelled, TaskTimeout) as error:
                caught.append(type(error))
        return "enough"

    threading.Timer(0.02, guard.cancel, args=("job", 0.0)).start()
    assert guard.call("job", stubborn, (), in_s(0.2))
    assert caught == [TaskCancelled, TaskTimeout]
    assert guard.value == "enough"


def test_a_handler_inside_a_blocking_call_is_given_up_after_the_grace(guard, given_up, wait_until):
    release = threading.Event()
    thread = threading.Thread(target=guard.call, args=("job", release.wait, (30,), in_s(0.1)))
    began = time.monotonic()
    thread.start()
    wait_until(lambda: given_up, what="the end of the grace")
    assert 0.3 <= time.monotonic() - began < 2
    assert guard.abandoned
    release.set()
    thread.join(5)
    assert not thread.is_alive()


def test_giving_up_by_hand_finds_only_what_still_runs(guard):
    assert not guard.abandon("job")
    guard.call("job", lambda: None, (), in_s(5))
    assert not guard.abandon("job")


def test_a_short_limit_after_a_long_one_is_not_missed(guard, guards, watchdog):
    other = Guard(0.2, watchdog.watch)
    guards.append(other)
    thread = threading.Thread(target=other.call, args=("long", spin, (0.5,), in_s(60)))
    thread.start()
    began = time.monotonic()
    assert not guard.call("short", spin, (10,), in_s(0.1))
    assert time.monotonic() - began < 1
    thread.join(10)
    assert other.value == "done"


@pytest.mark.parametrize(("kind", "turns"), [("deadline", 125), ("cancel", 25)])
def test_life_09_1000_ends_close_to_the_limit_have_one_outcome_each(watchdog, guards, kind, turns):
    """The exception of a late interrupt must never rise outside of the handler, whatever the moment it comes."""
    escaped, outcomes = [], []

    def work(number):
        guard = Guard(5, watchdog.watch)
        guards.append(guard)
        dice = random.Random(number)
        for turn in range(turns):
            limit_s = 0.01
            job = (number, turn)
            try:
                if kind == "cancel":
                    threading.Timer(limit_s, guard.cancel, args=(job, 0.0)).start()
                deadline = in_s(limit_s if kind == "deadline" else 60)
                ok = guard.call(job, spin, (limit_s + dice.uniform(-0.005, 0.005),), deadline)
                outcomes.append((ok, type(guard.error)))
                guard.clear()
                for _ in range(200):  # where a late one would rise
                    pass
            except BaseException as error:
                escaped.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert escaped == []
    assert len(outcomes) == 8 * turns
    expected = TaskTimeout if kind == "deadline" else TaskCancelled
    assert {outcome for outcome in outcomes if not outcome[0]} <= {(False, expected)}
    assert (True, type(None)) in outcomes
