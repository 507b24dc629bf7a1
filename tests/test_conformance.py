"""Every event is fired at a task in every status: what the table allows happens, everything else changes nothing."""

from __future__ import annotations

import contextlib
import inspect
import re
import time
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import pytest

from dtq.errors import TaskFinished, WrongState
from dtq.keys import Keys
from dtq.model import Claim
from dtq.mq.store import mq_limits
from dtq.redisio import Server
from dtq.scripts import Scripts
from dtq.states import TERMINAL, TRANSITIONS, Event, Status
from tests.support.dump import dump
from tests.support.engine import FAR_MS, Engine, Seeded

E, S = Event, Status


def _claim_of(engine: Engine, seeded: Seeded) -> Claim:
    """The claim of the task, or one that nobody was given but that names the right fencing token."""
    if seeded.claim is not None:
        return seeded.claim
    return Claim(
        task_id=seeded.task_id, seq=int(engine.field(seeded.task_id, "seq") or 0), attempt=1, task_type="echo",
        queue=seeded.queue, priority=5, max_attempts=None, timeout_ms=None, failures=0, suspect=0, unknown_since=None,
        payload=b"{}", extra=b"", waited_s=0.0, age_s=0.0,
    )  # fmt: skip


def _seed(engine: Engine, status: Status, event: Event) -> Seeded:
    seeded = engine.seed(status)
    if event is E.POISON and status is S.RUNNING:  # lost once, so a suspect; then started with nothing beside it
        time.sleep(0.003)
        assert engine.take_back() == 1
        claim = engine.claim_one("w1", seeded.queue)
        assert engine.broker.start_suspect("w1", claim, alone=True)
        return Seeded(seeded.task_id, seeded.queue, claim)
    if event is E.EXPIRE:
        engine.let_ttl_pass(seeded.task_id)
    if event is E.DROP and status is S.RUNNING:
        engine.cancel(seeded.task_id)
    return seeded


def _cancel(engine: Engine, seeded: Seeded) -> None:
    with contextlib.suppress(TaskFinished):
        engine.cancel(seeded.task_id, "why not")


def _requeue(engine: Engine, seeded: Seeded) -> None:
    with contextlib.suppress(WrongState):
        engine.requeue(seeded.task_id, "somebody")


def _discard(engine: Engine, seeded: Seeded) -> None:
    with contextlib.suppress(WrongState):
        engine.discard(seeded.task_id)


def _expire(engine: Engine, seeded: Seeded) -> None:
    engine.broker.upkeep.promote(late_ms=-FAR_MS)
    engine.claim("w2", 1, [seeded.queue])


def _reclaim(engine: Engine, seeded: Seeded) -> None:
    time.sleep(0.003)  # the lease is 1 ms
    engine.take_back()


def _exhaust_unkept(engine: Engine, seeded: Seeded) -> None:
    unkept = Engine(engine.server, dlq_enabled=False)
    unkept.commit(_claim_of(engine, seeded), "dead", reason="exhausted")


def _commit(kind: Any, **fields: Any) -> Callable[[Engine, Seeded], None]:
    def fire(engine: Engine, seeded: Seeded) -> None:
        engine.commit(_claim_of(engine, seeded), kind, **fields)

    return fire


FIRE: dict[Event, Callable[[Engine, Seeded], object]] = {
    E.CLAIM: lambda engine, seeded: engine.claim("w2", 1, [seeded.queue]),
    E.HAND_BACK: lambda engine, seeded: engine.broker.hand_back("w1", [_claim_of(engine, seeded)]),
    E.RECLAIM: _reclaim,
    E.POISON: _reclaim,
    E.SUCCEED: _commit("succeed", result=b"1"),
    E.RETRY: _commit("retry", delay_ms=3_600_000),
    E.SNOOZE: _commit("snooze", delay_ms=3_600_000),
    E.EXHAUST: _commit("dead", reason="exhausted"),
    E.EXHAUST_UNKEPT: _exhaust_unkept,
    E.PROMOTE: lambda engine, seeded: engine.broker.upkeep.promote(late_ms=-FAR_MS),
    E.CANCEL: _cancel,
    E.DROP: _commit("cancelled"),
    E.EXPIRE: _expire,
    E.REQUEUE: _requeue,
    E.DISCARD: _discard,
    E.EVICT: lambda engine, seeded: engine.fail_for_good(queue="another"),
}

HARMLESS = re.compile(
    r"[^:]+:(stream:events|dead-letter:evicted|stream:another:.*|counter:another.*|counted:.*|index:another:.*|queues|stream:dead-letter"
    r"|(task|payload|attempts):(?!SEEDED).*|stream:[^:]+:wake|worker:w1)"
)
"""What an eviction's cause, the burial of another task, changes beside the task that is looked at."""


def _look(engine: Engine, event: Event, seeded: Seeded) -> dict[str, Any]:
    found = dump(engine.server)
    if event is not E.EVICT:
        return found
    harmless = HARMLESS.pattern.replace("SEEDED", seeded.task_id)
    return {name: value for name, value in found.items() if not re.fullmatch(harmless, name)}


def _check(server: Server, event: Event) -> None:
    for status in Status:
        server.call("FLUSHALL")
        engine = Engine(server, max_crashes=1, dlq_maxlen=1)
        engine.register("w1", lease_s=0.001)
        seeded = _seed(engine, status, event)
        before = _look(engine, event, seeded)
        FIRE[event](engine, seeded)
        now = engine.task(seeded.task_id).status
        assert now == TRANSITIONS.get((status, event), status), f"{event} at {status}: became {now}"
        if (status, event) not in TRANSITIONS:
            assert _look(engine, event, seeded) == before, f"{event} at {status} was refused but left traces"


@pytest.mark.parametrize("event", Event)
def test_every_status_takes_an_event_as_the_table_says(any_server: Server, event: Event) -> None:
    _check(any_server, event)


@pytest.mark.parametrize("event", Event)
def test_the_server_in_memory_follows_the_table_too(memory_server: Server, event: Event) -> None:
    _check(memory_server, event)


def test_every_event_of_the_table_has_a_script_that_is_fired_here() -> None:
    assert set(FIRE) == set(Event) == {event for _, event in TRANSITIONS}


def test_a_submission_begins_as_queued_or_as_pending(server: Server) -> None:
    engine = Engine(server)
    assert engine.task(engine.submit()).status is S.QUEUED
    assert engine.task(engine.submit(delay_seconds=60)).status is S.PENDING


# --- the scripts as texts ---------------------------------------------------------------------------------------------


def _files() -> Iterator[tuple[str, str]]:
    folder = resources.files("dtq") / "lua"
    for place, prefix in ((folder, ""), (folder / "lib", "lib/")):
        for file in place.iterdir():
            if file.name.endswith(".lua"):
                yield prefix + file.name.removesuffix(".lua"), file.read_text(encoding="utf-8")


FILES = dict(sorted(_files()))
SCRIPTS = [name for name in FILES if "/" not in name]


def _header(name: str) -> str:
    found = re.match(r"--\[\[(.*?)\]\]", FILES[name], re.DOTALL)
    return found[1] if found else ""


def test_lua_and_python_agree_on_what_is_terminal() -> None:
    assert set(re.findall(r"(\w+) = true", FILES["lib/states"])) == {status.value for status in TERMINAL}


@pytest.mark.parametrize("name", FILES)
def test_every_lua_file_begins_by_saying_what_it_is_for(name: str) -> None:
    assert len(_header(name)) > 40
    if "/" not in name:
        assert _header(name).startswith(f" {name}" if _header(name).startswith(" ") else name)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_names_its_arguments_and_what_it_returns(name: str) -> None:
    text = FILES[name]
    assert re.search(r"^--@args", text, re.MULTILINE)
    assert ("--@items" in text) == ("ITEMS" in text)
    assert re.search(r"Returns", _header(name))
    if name.startswith("mq_"):  # the message queue has no lifecycle events
        return
    if "event(" in text or "finish(" in text or "bury(" in text or "release(" in text:
        assert "Events:" in _header(name)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_compiles_and_uses_what_it_includes(server: Server, name: str) -> None:
    script = Engine(server).broker.scripts.script(name)
    assert server.call("SCRIPT", "LOAD", script.source).decode() == script.sha
    assert "key." not in script.source
    assert not re.search(r"--@(args|items|item)\b", script.source)


def test_no_script_names_a_limit_that_python_does_not_give(server: Server) -> None:
    engine = Engine(server)
    queue_scripts = Scripts(server, engine.keys, mq_limits(engine.settings))
    for name in SCRIPTS:
        scripts = queue_scripts if name.startswith("mq_") else engine.broker.scripts
        source = re.sub(r"'[^'\n]*'", "", scripts.script(name).source)
        source = re.sub(r"--.*", "", source)
        left = set(re.findall(r"\b[A-Z][A-Z_]{2,}\b", source)) - {
            "ARGV",
            "ITEM",
            "ITEMS",
            "TERMINAL",
            "ENDING",
            "FIELDS",
        }
        assert not left, f"{name}: {left}"


def test_no_script_trims_the_stream_of_a_band() -> None:
    """CLAIM-08: trimming knows nothing of what is unread or pending."""
    for name, text in FILES.items():
        assert "XTRIM" not in text
        for line in text.splitlines():
            if "MAXLEN" in line and "XADD" in line:
                wakes = "WAKE_MAXLEN" in line
                assert wakes or re.search(r"key\.(wake|scheduler_wake|events|audit)\(", line), f"{name}: {line}"


@pytest.mark.parametrize(
    "name", [name for name, member in inspect.getmembers(Keys, inspect.isfunction) if not name.startswith("_")]
)
def test_every_key_says_its_type_and_its_bound(name: str) -> None:
    if name == "as_lua":
        return
    doc = inspect.getdoc(getattr(Keys, name)) or ""
    assert re.match(r"(STREAM|HASH|STRING|LIST|SET|ZSET)\. ", doc)
    assert "Bound: " in doc
