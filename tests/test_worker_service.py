"""The loop of every actor, and what the actors know together about Redis being away."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from dtq.errors import RedisFull, RedisUnavailable
from dtq.outage import LONGEST_PAUSE_S, Outage
from dtq.worker.service import Service


class Counting(Service):
    """Counts its steps and raises what it is given."""

    def __init__(self, outage=None):
        super().__init__("counting", outage)
        self.steps = 0
        self.errors = []
        self.finished = 0
        self.pause_s = 0.005

    def step(self):
        self.steps += 1
        if self.errors:
            raise self.errors.pop(0)
        return False

    def finish(self):
        self.finished += 1


@pytest.fixture
def service():
    made = Counting(Outage())
    yield made
    made.stop()
    assert made.join(5)


def away(text="away"):
    return RedisUnavailable(text, reason="unreachable")


def test_starting_and_stopping_are_idempotent_and_stopping_may_come_first():
    service = Counting()
    service.stop()
    service.start()
    assert service.steps == 0
    assert service.join(0.1)
    service = Counting()
    service.start()
    service.start()
    assert sum(thread.name == "counting" for thread in threading.enumerate()) == 1
    service.stop()
    service.stop()
    assert service.join(5)
    assert service.finished == 1


def test_life_04_a_service_outlives_a_bad_step(service, wait_until, caplog):
    service.errors = [ValueError("odd"), KeyError("odder")]
    service.start()
    wait_until(lambda: service.beats > 3, what="steps after the bad ones")
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert not service.died


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_life_04_a_thread_that_dies_is_noticed_and_can_be_started_again(service, wait_until):
    service.errors = [SystemExit()]
    service.start()
    wait_until(lambda: service.died, what="the death")
    service.start()
    wait_until(lambda: service.beats > 0, what="a step of the new thread")
    assert not service.died


def test_a_service_waits_for_redis_and_goes_on_when_it_is_back(service, wait_until, caplog):
    service.errors = [away()] * 3
    service.start()
    wait_until(lambda: not service.errors and service.steps > 3, what="a step after the outage")
    service._outage.over()
    assert [record.getMessage() for record in caplog.records if "away" in record.getMessage()] == [
        "Redis is away, the worker keeps what it has and tries again: away"
    ]


def test_a_full_redis_is_said_once_and_holds_up_nobody_else(service, wait_until, caplog):
    service.errors = [RedisFull("full")] * 2
    service.start()
    wait_until(lambda: service.steps > 2, what="steps after the refusals")
    assert not service._outage.away
    assert [record.getMessage() for record in caplog.records] == ["Redis is full: full"]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_redis_10_one_actor_asks_at_a_time_and_no_more_than_once_a_second():
    """Four actors, half a minute of MISCONF: as many attempts as one actor would make."""
    clock = Clock()
    outage = Outage(clock, uniform=lambda: 0.0)
    stop = threading.Event()
    stop.set()  # pass_gate does not wait in this test; who may ask is read off the state
    attempts = 0
    outage.failed(away())
    while clock.now < 130.0:
        for _ in range(4):
            before = outage._next_try
            stop.clear()
            if clock.now >= before:
                outage.pass_gate(stop)
                attempts += 1
                outage.failed(away())
        clock.now += 0.05
    assert attempts <= 30 / LONGEST_PAUSE_S + 5
    assert outage._next_try - clock.now <= LONGEST_PAUSE_S


def test_an_outage_is_said_once_and_so_is_its_end(caplog):
    caplog.set_level(logging.INFO)
    clock = Clock()
    outage = Outage(clock)
    for _ in range(50):
        outage.failed(away())
        clock.now += 0.5
    outage.over()
    outage.over()
    assert [record.getMessage() for record in caplog.records] == [
        "Redis is away, the worker keeps what it has and tries again: away",
        "Redis is back after 25.0 s",
    ]


def test_redis_04_trouble_that_comes_and_goes_is_said_once(caplog):
    clock = Clock()
    outage = Outage(clock)
    for _ in range(50):
        outage.failed(away())
        clock.now += 0.5
        outage.over()
        clock.now += 0.5
    assert len(caplog.records) == 2


def test_an_end_lets_everybody_on_at_once():
    outage = Outage(uniform=lambda: 0.0)
    for _ in range(6):
        outage.failed(away())
        outage._next_try = 0.0
    outage.failed(away())
    stop = threading.Event()
    passed = []
    waiters = [threading.Thread(target=lambda: (outage.pass_gate(stop), passed.append(1))) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    began = time.monotonic()
    outage.over()
    for waiter in waiters:
        waiter.join(5)
    assert len(passed) == 3
    assert time.monotonic() - began < 0.5


def test_a_stop_ends_the_wait_for_redis():
    outage = Outage()
    outage.failed(away())
    outage._next_try = time.monotonic() + 60
    stop = threading.Event()
    waiter = threading.Thread(target=outage.pass_gate, args=(stop,))
    waiter.start()
    stop.set()
    waiter.join(2)
    assert not waiter.is_alive()
