"""Redis stops, dies, loads, refuses, runs out of room, forgets: afterwards everything goes on by itself."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from dtq.errors import DtqError, RedisFull
from dtq.redisio import Server
from dtq.states import Status
from tests.crash.conftest import Field, FieldFactory
from tests.support.nursery import Worker
from tests.support.servers import ServerProcess, free_port
from tests.support.waiting import wait_until

SOON_S = 5.0
"""By when all must be well again."""
MARGIN_S = 5.0
"""What a busy machine may add to that."""


class Fault(Protocol):
    """Something that a server suffers. `begin` and `end` are told the server and a connection straight to it."""

    options: tuple[str, ...]

    def begin(self, process: ServerProcess, straight: Server) -> None: ...

    def end(self, process: ServerProcess, straight: Server) -> None: ...


class Stopped:
    """Ended in order, and started again."""

    options: tuple[str, ...] = ()

    def begin(self, process: ServerProcess, straight: Server) -> None:
        process.stop()

    def end(self, process: ServerProcess, straight: Server) -> None:
        process.start()


class Killed(Stopped):
    """SIGKILL; the append-only file brings everything back."""

    options = ("--appendfsync", "always")

    def begin(self, process: ServerProcess, straight: Server) -> None:
        process.kill()


class Loading(Killed):
    """Killed, and slow to load what it has: LOADING for a second or so."""

    options = ("--appendfsync", "always", "--key-load-delay", "200")

    def begin(self, process: ServerProcess, straight: Server) -> None:
        straight.pipeline([("SET", f"other:{number}", "") for number in range(6000)])
        process.kill()

    def end(self, process: ServerProcess, straight: Server) -> None:
        process.start(wait=False)
        wait_until(lambda: _answer(straight).startswith("LOADING"), "LOADING", 10)
        wait_until(lambda: _answer(straight) == "PONG", "the end of the loading", 20)


class Frozen:
    """Takes connections and does not answer."""

    options: tuple[str, ...] = ()

    def begin(self, process: ServerProcess, straight: Server) -> None:
        process.pause()

    def end(self, process: ServerProcess, straight: Server) -> None:
        process.resume()


class ReadOnly:
    """Becomes a replica, of nobody that answers, and a master again: READONLY on connections that stand."""

    options = ("--replica-serve-stale-data", "yes")

    def begin(self, process: ServerProcess, straight: Server) -> None:
        straight.call("REPLICAOF", "127.0.0.1", free_port())

    def end(self, process: ServerProcess, straight: Server) -> None:
        straight.call("REPLICAOF", "NO", "ONE")


class CannotSave:
    """Its snapshot fails, so it refuses to write: MISCONF. Its directory is gone."""

    options = ("--save", "3600 1000000", "--stop-writes-on-bgsave-error", "yes", "--enable-protected-configs", "yes")

    def begin(self, process: ServerProcess, straight: Server) -> None:
        lost = process.directory / "lost"
        lost.mkdir()
        straight.call("CONFIG", "SET", "dir", str(lost))
        shutil.rmtree(lost)
        straight.call("BGSAVE")
        wait_until(lambda: b"rdb_last_bgsave_status:err" in straight.call("INFO", "persistence"), "the failed save", 10)

    def end(self, process: ServerProcess, straight: Server) -> None:
        straight.call("CONFIG", "SET", "dir", str(process.directory))
        straight.call("BGSAVE")
        wait_until(lambda: b"rdb_last_bgsave_status:ok" in straight.call("INFO", "persistence"), "the next save", 10)


class Full:
    """At maxmemory, and evicting nothing."""

    options = ("--maxmemory-policy", "noeviction")

    def begin(self, process: ServerProcess, straight: Server) -> None:
        straight.call("CONFIG", "SET", "maxmemory", 1)

    def end(self, process: ServerProcess, straight: Server) -> None:
        straight.call("CONFIG", "SET", "maxmemory", 0)


class Forgets:
    """Loses its scripts, again and again, and all its clients."""

    options: tuple[str, ...] = ()

    def begin(self, process: ServerProcess, straight: Server) -> None:
        for _ in range(5):
            straight.call("SCRIPT", "FLUSH")
            straight.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            time.sleep(0.1)

    def end(self, process: ServerProcess, straight: Server) -> None:
        straight.call("SCRIPT", "FLUSH")


def _answer(straight: Server) -> str:
    try:
        return str(straight.call("PING").decode())
    except DtqError as error:
        return "LOADING" if error.context.get("reason") == "loading" else type(error).__name__


def _is_up(field: Field) -> bool:
    try:
        return field.client.queries.counts("default") is not None
    except DtqError:
        return False


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Stopped(), id="redis_01-stopped", marks=pytest.mark.slow),
        pytest.param(Killed(), id="redis_01-killed"),
        pytest.param(Loading(), id="redis_06-loading"),
        pytest.param(Frozen(), id="frozen", marks=pytest.mark.slow),
        pytest.param(ReadOnly(), id="redis_04-readonly"),
        pytest.param(CannotSave(), id="redis_10-misconf"),
        pytest.param(Full(), id="redis_08-full"),
        pytest.param(Forgets(), id="redis_18-forgets"),
    ],
)
def test_what_ran_waited_or_ended_in_an_outage_is_done_once_and_soon_after_it(
    server_factory: Callable[..., ServerProcess], make_field: FieldFactory, fault: Fault
) -> None:
    """Four tasks end while Redis is away, others wait for a slot or for their time, or fail for the first time."""
    process = server_factory("valkey", aof=True, options=fault.options)
    straight = Server.connect(process.url)
    field = make_field(process.url, visibility_timeout_s=6)
    worker = field.spawn()
    known = [field.done(field.submit(name)).task_id for name in ("quick", "fails.once")]
    ids = [field.submit("nap", {"seconds": 1.0}) for _ in range(4)]
    wait_until(lambda: len(field.runs()) == 2 + 4, "the starts", 15)
    ids += [field.submit(name) for name in ("quick", "fails.once") for _ in range(5)]
    ids += [field.submit("quick", delay_seconds=delay_s) for delay_s in (0.5, 1.0, 2.5)]
    fault.begin(process, straight)
    time.sleep(2.0)
    fault.end(process, straight)
    ended_at = time.monotonic()
    ids.append(field.submit_when_up())
    done = [field.done(one) for one in ids]
    assert time.monotonic() - ended_at < SOON_S + MARGIN_S
    assert {task.crashes for task in done} == {0}
    assert [task.attempt - task.failures for task in done] == [1] * len(done), "no start was lost or made twice"
    counted = {task_id: len(runs) for task_id, runs in field.runs().items()}
    assert counted == {task.task_id: task.attempt for task in [*done, *map(field.task, known)]}
    _check_words(worker)
    assert worker.stop() == 0
    straight.close()


def _check_words(worker: Worker) -> None:
    """A handful of lines, beside the two that each task which fails once is worth."""
    assert "Traceback" not in worker.log, worker.log
    assert worker.lines("ERROR", "CRITICAL") == []
    said = [line for line in worker.lines() if "next attempt in" not in line]
    assert len(said) <= 6, "\n".join(said)


def test_what_is_two_seconds_old_survives_a_server_that_is_killed_and_syncs_every_second(
    server_factory: Callable[..., ServerProcess], make_field: FieldFactory
) -> None:
    process = server_factory("valkey", aof=True, options=("--appendfsync", "everysec"))
    field = make_field(process.url)
    ids = [field.submit("quick") for _ in range(200)]
    time.sleep(2.2)  # one, and another one while its disk is busy
    process.kill()
    process.start()
    field.spawn()
    wait_until(lambda: _is_up(field), "the server", 10)
    assert {field.done(one).attempt for one in ids} == {1}


def test_redis_08_at_maxmemory_submissions_are_refused_and_what_runs_is_finished_all_the_same(
    server_factory: Callable[..., ServerProcess], make_field: FieldFactory
) -> None:
    """A retry, a success and a dead letter are written while nothing else can be; nothing is claimed in a hot loop."""
    process = server_factory("valkey", aof=True, options=("--maxmemory-policy", "noeviction"))
    straight = Server.connect(process.url)
    field = make_field(process.url, visibility_timeout_s=6)
    worker = field.spawn()
    running = [field.submit("nap", {"seconds": 1.5}), field.submit("fails.later")]
    for one in running:
        field.running(one)
    waiting = [field.submit("nap", {"seconds": 0.01}) for _ in range(20)]
    straight.call("CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(RedisFull):
        field.submit("quick", idempotency_key="refused")
    assert field.done(running[0], 10).status is Status.SUCCEEDED
    wait_until(lambda: field.task(running[1]).failures == 1, "the retry", 10)
    before = _calls(straight)
    time.sleep(1.5)
    assert (_calls(straight) - before) / 1.5 < 200, "those inside of scripts included"
    straight.call("CONFIG", "SET", "maxmemory", 0)
    for one in [*waiting, running[1]]:
        assert field.done(one).crashes == 0
    assert field.done(field.client.submit("quick", idempotency_key="refused").task_id).attempt == 1
    _check_words(worker)
    straight.close()


def _calls(straight: Server) -> int:
    return int(straight.call("INFO", "stats").split(b"total_commands_processed:")[1].split(b"\r\n")[0])


# --- what is deleted by hand ------------------------------------------------------------------------------------------


def test_redis_02_after_flushall_with_hundreds_in_its_hands_a_worker_goes_on_with_a_handful_of_lines(
    server: Server, make_field: FieldFactory
) -> None:
    """What was there is gone, as it was asked for; what comes afterwards is run at once."""
    field = make_field(server.safe_url, worker_concurrency=100, visibility_timeout_s=30)
    worker = field.spawn()
    gone = [field.submit("nap", {"seconds": 30}) for _ in range(50)]
    gone += [field.submit("nap", {"seconds": 0.5}) for _ in range(50)]
    wait_until(lambda: len(field.runs()) == 100, "the starts", 20)
    server.call("FLUSHALL")
    began = time.monotonic()
    ids = [field.submit("quick") for _ in range(5)]
    for one in ids:
        field.done(one, SOON_S + MARGIN_S)
    wait_until(lambda: len(field.client.queries.workers()) == 1, "its record", SOON_S + MARGIN_S)
    wait_until(lambda: sum(run.ended for one in gone for run in field.runs()[one]) == 100, "the end of the lost", 10)
    assert time.monotonic() - began < SOON_S + 2 * MARGIN_S
    _check_words(worker)
    assert worker.stop() == 0
    assert {len(field.runs()[one]) for one in ids} == {1}


@pytest.mark.parametrize(
    "lost", ["stream", "group", "schedule", *(pytest.param(one, marks=pytest.mark.slow) for one in ("wake", "streams"))]
)
def test_redis_02_what_is_deleted_under_a_worker_is_put_back_within_seconds(field: Field, lost: str) -> None:
    """Some run, many wait, some are delayed or parked; the record of each task brings it back."""
    worker = field.spawn(worker_concurrency=2, visibility_timeout_s=6)
    running = [field.submit("nap", {"seconds": 1.0}) for _ in range(2)]
    wait_until(lambda: len(field.runs()) == 2, "the starts", 15)
    ids = [field.submit("quick") for _ in range(100)]
    ids += [field.submit("quick", delay_seconds=1.0) for _ in range(5)]
    ids += [field.submit("fails.once", delay_seconds=0.3) for _ in range(5)]
    server, keys = field.client.server, field.keys
    if lost in ("stream", "streams"):
        server.call("DEL", keys.stream("default", 5))
    if lost == "group":
        server.call("XGROUP", "DESTROY", keys.stream("default", 5), "workers")
    if lost in ("wake", "streams"):
        server.call("DEL", keys.wake("default"), keys.scheduler_wake(), keys.parked("default"))
    if lost == "schedule":
        time.sleep(0.5)
        server.call("DEL", keys.schedule())
    began = time.monotonic()
    done = [field.done(one) for one in [*running, *ids]]
    assert time.monotonic() - began < SOON_S + MARGIN_S
    assert {task.failures + 1 - task.attempt for task in done} == {0}
    counted = {task_id: len(runs) for task_id, runs in field.runs().items()}
    assert counted == {task.task_id: task.attempt for task in done}
    _check_words(worker)


@pytest.mark.slow
def test_a_backlog_whose_stream_is_deleted_is_put_back_at_once_and_not_by_and_by(field: Field) -> None:
    """Ten thousand waiting tasks: their order is kept, and nothing has to wait for the next round."""
    for _ in range(10):
        field.client.submit_many([{"task_type": "quick", "queue": "backlog"}] * 1000)
    field.client.server.call("DEL", field.keys.stream("backlog", 5))
    worker = field.spawn()
    began = time.monotonic()
    wait_until(lambda: field.client.queries.queue("backlog").depth == 10_000, "all tickets", 30)
    assert time.monotonic() - began < SOON_S + MARGIN_S
    _check_words(worker)
    assert worker.stop() == 0


def test_an_index_a_record_and_a_lock_that_are_deleted_stop_nobody(field: Field, tmp_path: Path) -> None:
    worker = field.spawn(worker_concurrency=1)
    first = field.submit("nap", {"seconds": 0.5})
    field.running(first)
    ids = [field.submit("quick") for _ in range(10)]
    server, keys = field.client.server, field.keys
    for key in (keys.scheduler_lock(), keys.workers(), keys.leases(), keys.worker("one"), keys.totals("default")):
        server.call("DEL", key)
    server.call("DEL", keys.index("default", Status.QUEUED), keys.index("default", Status.RUNNING), keys.queues())
    server.call("DEL", keys.task(ids[0]), keys.payload(ids[1]))
    for one in [first, *ids[2:]]:
        field.done(one)
    assert field.task(ids[1]).status is Status.DEAD_LETTERED
    assert field.done(field.submit("fails.once", delay_seconds=0.2)).attempt == 2
    wait_until(lambda: [one.worker_id for one in field.client.queries.workers()] == ["one"], "its record", 10)
    assert "Traceback" not in worker.log
    assert worker.stop() == 0


def test_a_server_that_comes_back_empty_is_worked_on(
    server_factory: Callable[..., ServerProcess], make_field: FieldFactory
) -> None:
    """No persistence: as after FLUSHALL, and with a restart on top."""
    process = server_factory("valkey")
    field = make_field(process.url)
    worker = field.spawn()
    field.submit("nap", {"seconds": 0.7})
    wait_until(field.runs, "the start", 15)
    process.kill()
    time.sleep(1.0)
    process.start()
    began = time.monotonic()
    for _ in range(3):
        field.done(field.submit_when_up(), SOON_S + MARGIN_S)
    assert time.monotonic() - began < SOON_S + MARGIN_S
    _check_words(worker)
    assert worker.stop() == 0
