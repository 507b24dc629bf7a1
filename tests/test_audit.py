"""What operators did is written down by the script that does it: once, and only what was really done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dtq.audit import AuditEntry, AuditFilter
from dtq.errors import InvalidTask, TaskFinished, WorkerNotFound, WrongState
from dtq.model import Actor
from dtq.redisio import Server
from dtq.states import Status
from tests.support.engine import Engine

S = Status
ANN = Actor("cli:ann", "maintenance", "req-7")


def entries(engine: Engine, **wanted: Any) -> list[AuditEntry]:
    return list(engine.queries.audit(AuditFilter(**wanted)).entries)


def _seeded(status: Status) -> Callable[[Engine], str]:
    return lambda engine: engine.seed(status, "default").task_id


def _paused(engine: Engine) -> str:
    engine.control.pause("default", Actor("another"))
    return "default"


def _worker(engine: Engine) -> str:
    return engine.register("w1").worker_id


ACTIONS: dict[str, tuple[Callable[[Engine], str], Callable[[Engine, str], object], str]] = {
    "task.cancel": (_seeded(S.QUEUED), lambda e, i: e.control.cancel(i, ANN), ""),
    "task.cancel running": (_seeded(S.RUNNING), lambda e, i: e.control.cancel(i, ANN), "requested"),
    "task.requeue": (_seeded(S.DEAD_LETTERED), lambda e, i: e.control.requeue(i, ANN), ""),
    "task.requeue elsewhere": (_seeded(S.DEAD_LETTERED), lambda e, i: e.control.requeue(i, ANN, queue="o"), "o"),
    "task.discard": (_seeded(S.DEAD_LETTERED), lambda e, i: e.control.discard(i, ANN), ""),
    "queue.pause": (lambda e: "default", lambda e, name: e.control.pause(name, ANN), ""),
    "queue.resume": (_paused, lambda e, name: e.control.resume(name, ANN), ""),
    "worker.quiet": (_worker, lambda e, i: e.control.tell_worker(i, "quiet", ANN), ""),
    "worker.stop": (_worker, lambda e, i: e.control.tell_worker(i, "stop", ANN), ""),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_has_one_entry_that_says_who_what_when_and_why(any_server: Server, name: str) -> None:
    prepare, act, detail = ACTIONS[name]
    engine = Engine(any_server)
    target = prepare(engine)
    any_server.call("DEL", engine.keys.audit())
    act(engine, target)
    (entry,) = entries(engine)
    told = (entry.actor, entry.action, entry.target, entry.reason, entry.request_id, entry.count, entry.detail)
    assert told == ("cli:ann", name.split(maxsplit=1)[0], target, "maintenance", "req-7", 1, detail)
    seconds, micros = any_server.call("TIME")
    assert 0 <= int(seconds) + int(micros) / 1e6 - entry.at < 60, "by the clock of Redis"


def test_what_was_refused_or_done_already_has_no_entry(server: Server) -> None:
    engine = Engine(server)
    done, running, dead = (engine.seed(status).task_id for status in (S.SUCCEEDED, S.RUNNING, S.DEAD_LETTERED))
    assert engine.pause("default")
    engine.register("w1")
    assert engine.control.tell_worker("w1", "stop", ANN)
    engine.cancel(running)
    engine.discard(dead)
    before = entries(engine)
    assert [entry.action for entry in before] == ["task.discard", "task.cancel", "worker.stop", "queue.pause"]
    with pytest.raises(TaskFinished):
        engine.cancel(done)
    with pytest.raises(WrongState, match="not dead_lettered"):
        engine.requeue(done)
    with pytest.raises(WrongState, match="failed"):
        engine.discard(dead)
    assert engine.cancel(running, "again") is S.RUNNING
    assert not engine.pause("default")
    assert not engine.resume("another")
    assert not engine.control.tell_worker("w1", "stop", ANN)
    assert not engine.control.tell_worker("w1", "quiet", ANN), "who was told to stop is told nothing less"
    with pytest.raises(WorkerNotFound):
        engine.control.tell_worker("w2", "stop", ANN)
    assert entries(engine) == before
    assert engine.task(running).reason == "cancelled by somebody", "the first who asked"


def test_pages_of_the_audit_are_newest_first_and_filtered(server: Server) -> None:
    engine = Engine(server)
    for number in range(450):  # more than one read of the stream
        engine.pause(f"q{number}", "Ann" if number % 150 == 0 else "Bob")
    everything, cursor = [], None
    while True:
        page = engine.queries.audit(AuditFilter(), 200, cursor)
        everything += page.entries
        cursor = page.next_cursor
        if cursor is None:
            break
    assert [entry.target for entry in everything] == [f"q{number}" for number in range(449, -1, -1)]
    assert [entry.target for entry in entries(engine, actor="Ann")] == ["q300", "q150", "q0"]
    assert [entry.target for entry in entries(engine, target="q77")] == ["q77"]
    assert entries(engine, action="queue.resume") == []
    middle = everything[200]
    later = entries(engine, since=middle.at)
    assert all(entry.at >= middle.at for entry in later)
    assert entries(engine, until=everything[-1].at - 0.002) == []
    assert entries(engine, since=everything[0].at + 0.002) == []
    with pytest.raises(InvalidTask, match="not a cursor"):
        engine.queries.audit(AuditFilter(), 10, "x")


def test_a_rare_entry_is_found_over_several_pages_each_of_which_looks_at_a_bounded_number(server: Server) -> None:
    engine = Engine(server)
    engine.pause("first", "Ann")
    one = server.call("XRANGE", engine.keys.audit(), "-", "+")[0][1]
    other = [value if value != b"Ann" else b"Bob" for value in one]
    for _ in range(5):
        server.pipeline([("XADD", engine.keys.audit(), "*", *other)] * 500)
    pages, found, cursor = 0, [], None
    while pages == 0 or cursor:
        page = engine.queries.audit(AuditFilter(actor="Ann"), 10, cursor)
        pages, cursor = pages + 1, page.next_cursor
        found += page.entries
    assert (pages, [entry.target for entry in found]) == (2, ["first"])


def test_the_audit_is_bounded(server: Server, bounded_keys: None) -> None:
    engine = Engine(server)
    engine.pause("default")
    one = server.call("XRANGE", engine.keys.audit(), "-", "+")[0][1]
    for _ in range(12):
        server.pipeline([("XADD", engine.keys.audit(), "*", *one)] * 1_000)
    engine.resume("default")
    assert 10_000 <= server.call("XLEN", engine.keys.audit()) <= 10_100


def test_an_entry_that_something_else_has_written_is_shown_as_far_as_it_can_be_read(server: Server) -> None:
    engine = Engine(server)
    server.call("XADD", engine.keys.audit(), "*", "actor", b"\xff", "count", "many")
    (entry,) = entries(engine)
    assert (entry.actor, entry.count, entry.action) == ("\ufffd", 0, "")


def test_names_and_reasons_with_control_characters_stay_in_their_fields(server: Server) -> None:
    engine = Engine(server)
    engine.control.pause("default", Actor("a\tb", "why\t\nnot " + "x" * 300, "r\t1"))
    (entry,) = entries(engine)
    assert (entry.actor, entry.request_id) == ("a b", "r 1")
    assert entry.reason.startswith("why not xxx")
    assert len(entry.reason) == 200
    assert engine.queries.queue("default").paused is not None


def test_a_pause_tells_its_time_by_the_clock_of_redis(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(server)
    monkeypatch.setattr(time, "time", lambda: 1.0)
    engine.pause("default", "Ann", "repairs")
    paused = engine.queries.queue("default").paused
    assert paused is not None
    assert (paused["by"], paused["reason"]) == ("Ann", "repairs")
    assert abs(paused["at"] - int(server.call("TIME")[0])) < 60
