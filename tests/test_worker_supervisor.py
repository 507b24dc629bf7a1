"""A whole worker on a fake broker: starting, watching, draining, and how it ends."""

from __future__ import annotations

import logging
import math
import threading
import time

import pytest

from dtq.states import Status
from dtq.worker import supervisor as supervisor_module
from dtq.worker.supervisor import ExitCode, stacks
from tests.support.workers import Unit


class Running:
    """A unit whose supervisor runs in a thread."""

    def __init__(self, **options):
        options.setdefault("worker_concurrency", 4)
        options.setdefault("timeout_grace_s", 0.2)
        self.unit = Unit(**options)
        self.unit.task("echo")(lambda payload, ctx: payload)
        self.code = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        self.code = self.unit.supervisor.run()

    def start(self):
        self.thread.start()
        return self.unit

    def end(self, timeout_s=10):
        self.thread.join(timeout_s)
        assert not self.thread.is_alive(), stacks()
        return self.code

    def stop(self):
        self.unit.supervisor.stop()
        return self.end()


@pytest.fixture
def make():
    made = []

    def run(**options):
        made.append(Running(**options))
        return made[-1]

    yield run
    for one in made:
        if one.thread.is_alive():
            one.unit.broker.away = False
            one.unit.supervisor.stop()
            one.unit.supervisor.stop()
            one.thread.join(10)


def test_a_worker_runs_what_comes_and_ends_clean(make, wait_until):
    worker = make()
    unit = worker.start()
    ids = [unit.broker.add("echo") for _ in range(200)]
    wait_until(lambda: all(unit.broker.status(one) is Status.SUCCEEDED for one in ids), what="all tasks")
    assert worker.stop() == ExitCode.CLEAN
    assert unit.broker.registered == {}
    assert unit.broker.named("resign")
    names = {thread.name for thread in threading.enumerate()}
    assert names.isdisjoint({"fetcher", "committer", "ticker", "scheduler", "watchdog"})


def test_life_06_the_first_signal_drains_and_what_runs_ends_well(make, wait_until):
    worker = make()
    worker.unit.task("nap")(lambda payload, ctx: time.sleep(0.3))
    unit = worker.start()
    task_id = unit.broker.add("nap")
    wait_until(unit.pool.running, what="the start")
    unit.supervisor.stop()
    wait_until(lambda: unit.state.mode == "draining", what="the draining")
    late = unit.broker.add("echo")
    assert worker.end() == ExitCode.CLEAN
    assert unit.broker.status(task_id) is Status.SUCCEEDED
    assert unit.broker.status(late) is Status.QUEUED


def test_life_06_the_second_signal_hands_back_and_leaves_at_once(make, wait_until):
    """Handlers that listen to their interruption and one that does not: none is counted as a failed attempt."""
    worker = make()
    worker.unit.task("deaf")(lambda payload, ctx: time.sleep(3))

    @worker.unit.task("spinning")
    def spinning(payload, ctx):
        while True:
            time.sleep(0.005)

    @worker.unit.task("converting")
    def converting(payload, ctx):
        try:
            spinning(payload, ctx)
        except Exception as error:
            raise ValueError("converted") from error

    unit = worker.start()
    ids = [unit.broker.add(name) for name in ("deaf", "spinning", "converting")]
    wait_until(lambda: len(unit.pool.running()) == 3, what="the starts")
    unit.supervisor.stop()
    time.sleep(0.2)
    assert worker.thread.is_alive()
    began = time.monotonic()
    unit.supervisor.stop()
    assert worker.end() == ExitCode.HANDED_BACK
    assert time.monotonic() - began < 2
    assert sorted(unit.broker.waiting) == ids
    assert [unit.broker.tasks[one].claim.attempt for one in ids] == [0, 0, 0]
    assert all(unit.broker.tasks[one].outcome is None for one in ids)


def test_a_drain_ends_after_its_time_limit(make, wait_until):
    worker = make(drain_timeout_s=0.3)
    worker.unit.task("deaf")(lambda payload, ctx: time.sleep(3))
    unit = worker.start()
    task_id = unit.broker.add("deaf")
    wait_until(unit.pool.running, what="the start")
    assert worker.stop() == ExitCode.HANDED_BACK
    assert unit.broker.status(task_id) is Status.QUEUED


def test_a_task_that_succeeds_when_it_is_interrupted_by_the_shutdown_is_a_success(make, wait_until):
    worker = make(drain_timeout_s=0.1)

    @worker.unit.task("prompt")
    def prompt(payload, ctx):
        while not ctx.cancelled:
            time.sleep(0.005)
        return "just in time"

    unit = worker.start()
    task_id = unit.broker.add("prompt")
    wait_until(unit.pool.running, what="the start")
    worker.stop()
    assert unit.broker.tasks[task_id].status in (Status.SUCCEEDED, Status.QUEUED)
    if unit.broker.tasks[task_id].status is Status.QUEUED:  # the exception was faster
        assert worker.code == ExitCode.HANDED_BACK


def test_renewal_goes_on_until_the_last_task_has_ended(make, wait_until):
    worker = make(visibility_timeout_s=0.6)
    worker.unit.task("nap")(lambda payload, ctx: time.sleep(1.0))
    unit = worker.start()
    unit.broker.add("nap")
    wait_until(unit.pool.running, what="the start")
    unit.supervisor.stop()
    assert worker.end() == ExitCode.CLEAN
    draining = [call for call in unit.broker.named("tick") if call[1].state == "draining"]
    assert len([call for call in draining if call[2]]) >= 3
    assert unit.broker.calls[-1][0] == "deregister"


def test_claim_22_an_end_without_redis_is_bounded_and_says_what_it_left(make, wait_until, caplog, monkeypatch):
    monkeypatch.setattr(supervisor_module, "COMMIT_PATIENCE_S", 0.3)
    worker = make(drain_timeout_s=0.1)
    worker.unit.task("deaf")(lambda payload, ctx: time.sleep(3))
    unit = worker.start()
    unit.broker.add("deaf")
    wait_until(unit.pool.running, what="the start")
    unit.broker.away = True
    began = time.monotonic()
    assert worker.stop() == ExitCode.HANDED_BACK
    assert time.monotonic() - began < 8
    assert "could not hand back 1 tasks" in caplog.text


def test_outcomes_are_tried_to_be_recorded_as_long_as_the_drain_lasts(make, wait_until, monkeypatch):
    """Everything is restarted at once: Redis comes back before the worker must be gone."""
    monkeypatch.setattr(supervisor_module, "COMMIT_PATIENCE_S", 0.1)
    worker = make(drain_timeout_s=20)
    unit = worker.start()
    wait_until(lambda: unit.broker.named("claim"), what="the first claim")
    unit.broker.lose_reply = "claim"
    task_id = unit.broker.add("echo")
    worker.unit.task("nap")(lambda payload, ctx: time.sleep(0.2))
    nap_id = unit.broker.add("nap")
    wait_until(lambda: unit.broker.status(nap_id) is Status.RUNNING and unit.pool.running(), what="the start")
    unit.broker.away = True
    unit.supervisor.stop()
    time.sleep(1.0)
    assert worker.thread.is_alive()
    unit.broker.away = False
    assert worker.end() == ExitCode.CLEAN
    assert unit.broker.status(nap_id) is Status.SUCCEEDED
    assert unit.broker.status(task_id) in (Status.SUCCEEDED, Status.QUEUED)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("service", ["fetcher", "ticker", "scheduler", "committer", "watchdog"])
def test_life_04_a_thread_that_dies_is_started_again(make, wait_until, service):
    worker = make()
    actors = {one.name: one for one in worker.unit.supervisor._services}
    unit = worker.start()
    wait_until(lambda: actors[service].alive, what="the start")
    step, deaths = actors[service].step, []

    def die_once(*arguments):
        if not deaths:
            deaths.append(1)
            raise SystemExit
        return step(*arguments)

    actors[service].step = die_once
    if service in ("committer", "watchdog", "scheduler"):  # they wait for seconds when there is nothing to do
        actors[service].interrupt()
    unit.broker.bell.set()
    wait_until(lambda: deaths and actors[service].alive, what="the new thread", timeout_s=7)
    task_id = unit.broker.add("echo")
    wait_until(lambda: unit.broker.status(task_id) is Status.SUCCEEDED, what="a task after that", timeout_s=7)
    assert worker.stop() == ExitCode.CLEAN


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_life_04_threads_that_die_again_and_again_end_the_process(make, wait_until, caplog):
    worker = make()

    def die():
        raise SystemExit

    worker.unit.scheduler.step = die
    worker.start()
    assert worker.end() == ExitCode.CRASHED
    assert worker.unit.broker.registered == {}


def test_life_04_a_stuck_actor_ends_the_process(make, wait_until, monkeypatch, caplog):
    monkeypatch.setattr(supervisor_module, "STUCK_S", 0.5)
    monkeypatch.setattr(supervisor_module, "STUCK_DRAIN_S", 0.1)
    monkeypatch.setattr("dtq.worker.committer.IDLE_WAIT_S", 0.1)
    worker = make()
    for service in worker.unit.supervisor._services:
        service.step = lambda *arguments: time.sleep(0.02)
    worker.unit.fetcher.step = lambda: threading.Event().wait(4)
    worker.start()
    assert worker.end() == ExitCode.CRASHED
    assert "fetcher is stuck" in caplog.text


def test_an_actor_whose_every_step_fails_ends_the_process(make, monkeypatch, caplog):
    monkeypatch.setattr(supervisor_module, "STUCK_S", 0.5)
    monkeypatch.setattr(supervisor_module, "STUCK_DRAIN_S", 0.1)
    worker = make()
    for service in worker.unit.supervisor._services:
        service.step = lambda *arguments: time.sleep(0.02)
    worker.unit.fetcher.step = lambda: 1 / 0
    worker.start()
    assert worker.end() == ExitCode.CRASHED


def test_waiting_for_redis_is_not_being_stuck(make, wait_until, monkeypatch):
    worker = make()
    unit = worker.start()
    wait_until(lambda: unit.fetcher.alive, what="the start")
    unit.broker.away = True
    before = unit.fetcher.beats
    wait_until(lambda: unit.state.outage.away, what="the outage", timeout_s=7)
    wait_until(lambda: unit.ticker.beats + unit.fetcher.beats > before + 3, what="turns of waiting", timeout_s=10)
    unit.broker.away = False
    task_id = unit.broker.add("echo")
    wait_until(lambda: unit.broker.status(task_id) is Status.SUCCEEDED, what="a task after the outage", timeout_s=5)


def test_life_09_too_many_written_off_threads_end_the_worker_with_its_own_code(make, wait_until):
    worker = make(max_abandoned_threads=2)
    release = threading.Event()
    worker.unit.task("hang", timeout_ms=100)(lambda payload, ctx: release.wait(30))
    unit = worker.start()
    ids = [unit.broker.add("hang") for _ in range(3)]
    assert worker.end() == ExitCode.TOO_MANY_ABANDONED
    assert all(unit.broker.outcome(one).kind == "retry" for one in ids)
    release.set()


def test_a_burst_ends_by_itself_and_tells_of_failures(make):
    worker = make(burst=True)
    ids = [worker.unit.broker.add("echo") for _ in range(20)]
    worker.start()
    assert worker.end() == ExitCode.CLEAN
    assert all(worker.unit.broker.status(one) is Status.SUCCEEDED for one in ids)

    worker = make(burst=True)
    worker.unit.task("bad")(lambda payload, ctx: 1 / 0)
    worker.unit.broker.add("bad")
    worker.start()
    assert worker.end() == ExitCode.BURST_WITH_FAILURES


def test_a_burst_runs_what_its_tasks_submit(make):
    worker = make(burst=True)

    @worker.unit.task("parent")
    def parent(payload, ctx):
        time.sleep(0.1)
        return worker.unit.broker.add("echo")

    worker.unit.broker.add("parent")
    worker.start()
    assert worker.end() == ExitCode.CLEAN
    assert len(worker.unit.broker.tasks) == 2
    assert worker.unit.broker.waiting == []


def test_a_worker_ends_after_its_number_of_tasks(make):
    worker = make(max_tasks=5)
    for _ in range(9):
        worker.unit.broker.add("echo")
    worker.start()
    assert worker.end() == ExitCode.CLEAN
    assert worker.unit.state.stats.succeeded == 5
    assert len(worker.unit.broker.waiting) == 4


def test_a_worker_with_a_number_of_tasks_does_not_end_while_it_gives_one_back(make, monkeypatch):
    """Out of the books and still counted as taken: that is not the end of the task."""
    worker = make(max_tasks=1)
    unit, hand_back, seen = worker.unit, worker.unit.broker.hand_back, []
    task_id = unit.broker.add("echo")
    unit.fetcher._claim(1)

    def look_meanwhile(worker_id, claims):
        unit.supervisor._end_when_done()
        seen.append((len(unit.state.holdings), unit.state.taken, unit.supervisor.requests.stop))
        return hand_back(worker_id, claims)

    monkeypatch.setattr(unit.broker, "hand_back", look_meanwhile)
    unit.fetcher._give_back(math.inf)
    assert seen == [(0, 1, False)]
    worker.start()
    assert worker.end() == ExitCode.CLEAN
    assert unit.broker.outcome(task_id).kind == "succeed"


def test_redis_that_does_not_answer_at_the_start_is_waited_for_and_then_reported(make, monkeypatch, caplog):
    monkeypatch.setattr(supervisor_module, "START_PATIENCE_S", 0.3)
    worker = make()
    worker.unit.broker.away = True
    worker.start()
    assert worker.end() == ExitCode.REDIS_AWAY
    assert "cannot start" in caplog.text


def test_redis_06_a_redis_that_is_loading_is_waited_for(make, monkeypatch, wait_until, caplog):
    monkeypatch.setattr(supervisor_module, "START_PATIENCE_S", 0.1)
    worker = make()
    register, loading = worker.unit.broker.register, [1]

    def refuse(info, policies):
        if loading:
            raise supervisor_module.RedisUnavailable("Redis is still loading its data", reason="loading")
        register(info, policies)

    worker.unit.broker.register = refuse
    unit = worker.start()
    time.sleep(0.5)
    assert worker.thread.is_alive()
    loading.clear()
    task_id = unit.broker.add("echo")
    wait_until(lambda: unit.broker.status(task_id) is Status.SUCCEEDED, what="a task after the loading")
    assert len([record for record in caplog.records if "waiting for Redis" in record.getMessage()]) == 1


def test_the_embedded_server_is_started_again_when_it_is_gone(make, wait_until):
    worker = make()
    started = []
    worker.unit.supervisor._start_redis = lambda: started.append(1)
    unit = worker.start()
    wait_until(lambda: unit.fetcher.alive, what="the start")
    unit.broker.away = True
    wait_until(lambda: started, what="the new server", timeout_s=7)
    unit.broker.away = False


def test_a_worker_whose_parent_is_gone_ends(make, wait_until, monkeypatch):
    worker = make()
    unit = worker.start()
    wait_until(lambda: unit.fetcher.alive, what="the start")
    monkeypatch.setattr("os.getppid", lambda: 1)
    assert worker.end() == ExitCode.CLEAN


def test_stacks_of_all_threads_go_to_the_log(make, wait_until, caplog):
    caplog.set_level(logging.WARNING)
    worker = make()
    unit = worker.start()
    wait_until(lambda: unit.fetcher.alive, what="the start")
    unit.supervisor.show_stacks()
    wait_until(lambda: "stacks of all threads" in caplog.text, what="the stacks")
    assert "fetcher:" in caplog.text
    assert "runner-1:" in caplog.text
