"""What is true of a namespace after every script, whatever happened before."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dtq.keys import GROUP, PARKED, Keys
from dtq.redisio import Server
from dtq.settings import Settings
from dtq.states import TERMINAL, Status
from tests.support.dump import dump
from tests.support.lifetimes import check_keys

_WAITING_IN_SCHEDULE = (Status.PENDING, Status.RETRYING)
_TERMINAL = {status.value for status in TERMINAL}


class _Ticket(NamedTuple):
    queue: str
    band: int
    entry: str
    consumer: str | None
    """Who holds it; None: nobody has been given it yet."""


class State:
    """One dump of a namespace, read as the engine means it."""

    def __init__(self, server: Server, keys: Keys) -> None:
        self._prefix = f"{keys.namespace}:"
        self.raw = {name.removeprefix(self._prefix): value for name, value in dump(server, keys.namespace).items()}
        self.tasks: dict[str, dict[str, str]] = {
            name: {field.decode(): value.decode(errors="replace") for field, value in content.items()}
            for name, content in self.named("task:")
        }
        self.schedule = self.sorted_set("retry:schedule")
        self.finished = self.sorted_set("index:finished")
        self.queues = self.sorted_set("queues")

    def named(self, start: str) -> Iterator[tuple[str, Any]]:
        for name, (content, _) in self.raw.items():
            if name.startswith(start):
                yield name.removeprefix(start), content

    def expires(self, name: str) -> bool:
        return bool(self.raw[name][1])

    def sorted_set(self, name: str) -> dict[str, int]:
        flat, _ = self.raw.get(name, ((), False))
        return {member.decode(): int(score) for member, score in zip(flat[::2], flat[1::2], strict=True)}

    def tickets(self) -> dict[str, list[_Ticket]]:
        found: dict[str, list[_Ticket]] = {}
        for name, content in self.named("stream:"):
            place = re.fullmatch(r"([^:]+):p(\d)", name)
            if place:
                entries, pending = content
                holders = {entry.decode(): consumer.decode() for entry, consumer in pending.get(GROUP, ())}
                assert set(holders) <= {entry.decode() for entry, _ in entries}, f"{name}: pending without an entry"
                for raw_entry, fields in entries:
                    entry, task_id = raw_entry.decode(), fields[1].decode()
                    ticket = _Ticket(place[1], int(place[2]), entry, holders.get(entry))
                    found.setdefault(task_id, []).append(ticket)
        return found

    def indexes(self) -> dict[tuple[str, str], dict[str, int]]:
        found = {}
        for name, _ in self.named("index:"):
            if name != "finished":
                queue, status = name.split(":")
                found[queue, status] = self.sorted_set(f"index:{name}")
        return found

    def totals(self) -> dict[str, Counter[str]]:
        """Counters of each queue since it came to be."""
        return {name: _counter(content) for name, content in self.named("counter:") if ":" not in name}

    def minutes(self) -> dict[str, Counter[str]]:
        """The counters of all minutes of each queue, added up."""
        found: dict[str, Counter[str]] = {}
        for name, content in self.named("counter:"):
            queue, _, minute = name.partition(":")
            if minute:
                found.setdefault(queue, Counter()).update(_counter(content))
        return found


def _counter(content: Mapping[bytes, bytes]) -> Counter[str]:
    return Counter({field.decode(): int(number) for field, number in content.items()})


def check_invariants(server: Server, keys: Keys, settings: Settings) -> State:
    """Fail when anything has come apart. Returns what was read, for further looks."""
    state = State(server, keys)
    _check_places(state)
    _check_indexes(state)
    _check_ends(state)
    _check_idempotency(state)
    _check_counters(state)
    check_keys(server, keys, lifetime_rules(state, settings))
    return state


def _check_places(state: State) -> None:
    """Each live task is in exactly one place, and nothing else is in any."""
    tickets = state.tickets()
    for task_id, task in state.tasks.items():
        own, status = tickets.pop(task_id, []), Status(task["status"])
        due = state.schedule.pop(task_id, None)
        told = f"{task_id} {task}: tickets {own}, schedule {due}"
        if status in _WAITING_IN_SCHEDULE:
            assert not own, told
            assert due == int(task["available"]), told
        elif status is Status.QUEUED:
            assert len(own) == 1, told
            assert due is None, told
            assert own[0][:3] == (task["queue"], int(task["priority"]), task["entry"]), told
            assert own[0].consumer in (None, PARKED), told
        elif status is Status.RUNNING:
            assert len(own) == 1, told
            assert due is None, told
            assert own[0] == (task["queue"], int(task["priority"]), task["entry"], task["worker"]), told
        else:
            assert not own, told
            assert due is None, told
    assert not tickets, f"tickets that stand for no task: {tickets}"
    assert not state.schedule, f"scheduled, but no task: {state.schedule}"
    for name, content in state.named("stream:"):
        queue, _, band = name.partition(":p")
        if band.isdigit() and any(consumer.decode() == PARKED for _, consumer in content[1].get(GROUP, ())):
            assert band.encode() in state.raw[f"stream:{queue}:parked"][0], f"{name}: parked, but nobody would look"


def _check_indexes(state: State) -> None:
    """Indexes and records agree, both ways; depth, as counted from the indexes, is what the streams hold."""
    expected: dict[tuple[str, str], dict[str, int]] = {}
    for task_id, task in state.tasks.items():
        expected.setdefault((task["queue"], task["status"]), {})[task_id] = int(task["created"])
    assert state.indexes() == expected
    for queue in {queue for queue, _ in expected}:
        assert queue in state.queues, f"queue {queue} has tasks but is not listed"
    for name, content in state.named("stream:"):
        queue, _, band = name.partition(":p")
        if band.isdigit():
            waiting = {i for (q, status) in expected if q == queue and status in ("queued", "running")
                       for i in expected[q, status] if state.tasks[i]["priority"] == band}  # fmt: skip
            assert len(content[0]) == len(waiting), f"{name} holds {len(content[0])} entries for {len(waiting)} tasks"


def _check_ends(state: State) -> None:
    """What has ended will go, what has not will stay, dead letters as long as their entries."""
    letters = {}
    for entry, fields in state.raw.get("stream:dead-letter", (((), {}), False))[0][0]:
        letters[fields[1].decode()] = entry.decode()
    finished = set()
    for task_id, task in state.tasks.items():
        kept = task["status"] not in _TERMINAL or task["status"] == "dead_lettered"
        for part in ("task", "payload", "attempts"):
            name = f"{part}:{task_id}"
            if part != "attempts" or name in state.raw:
                assert state.expires(name) is not kept, f"{name} of a task that is {task['status']}"
        if not kept:
            finished.add(f"{task_id} {task['status']} {task['queue']}")
        assert letters.pop(task_id, None) == task.get("dead"), f"dead letter of {task_id} {task}"
        assert ("finished" in task) == (task["status"] in _TERMINAL), task
        assert ("dead" in task) == (task["status"] == "dead_lettered"), task
        assert "alone" not in task or task["status"] not in ("queued", "pending", "retrying"), task
    assert not letters, f"dead letters without a task: {letters}"
    assert set(state.finished) == finished
    for part in ("payload", "attempts", "result"):
        orphans = {task_id for task_id, _ in state.named(f"{part}:")} - set(state.tasks)
        assert not orphans, f"{part} without a task: {orphans}"


def _check_idempotency(state: State) -> None:
    """A record points at a task that exists, and stays exactly as long as that task has not ended."""
    for scope, content in state.named("idempotency:"):
        task_id = content[b"task"].decode()
        assert task_id in state.tasks, f"idempotency record {scope} points at nothing"
        ended = state.tasks[task_id]["status"] in _TERMINAL
        assert state.expires(f"idempotency:{scope}") is ended, f"{scope}: {state.tasks[task_id]['status']}"
        assert content[b"state"] == (b"done" if ended else b"active")


def _check_counters(state: State) -> None:
    minutes = state.minutes()
    for queue, totals in state.totals().items():
        assert totals == minutes.get(queue, Counter()), f"the minutes of {queue} do not add up to its totals"


def lifetime_rules(state: State, settings: Settings) -> list[tuple[str, str]]:
    """Return the table of the contract's section 2 for `check_keys`, as it stands for the tasks that there are."""
    queue = f"(?:{'|'.join(map(re.escape, state.queues)) or '(?!)'})"
    kept = [i for i, task in state.tasks.items() if task["status"] not in _TERMINAL or "dead" in task]
    live = [task["idem"] for task in state.tasks.values() if task["status"] not in _TERMINAL and "idem" in task]
    task_id = f"(?:{'|'.join(kept) or '(?!)'})"
    scope = f"(?:{'|'.join(map(re.escape, live)) or '(?!)'})"
    return [
        (f"stream:{queue}:p[0-9]", f"bounded:{settings.max_queue_depth}"),
        ("stream:scheduler:wake", "bounded:170"),
        (f"stream:{queue}:wake", "bounded:170"),
        ("stream:[^:]+:wake", "ttl"),
        (f"stream:{queue}:parked", "bounded:10"),
        ("stream:dead-letter", f"bounded:{settings.dlq_maxlen}"),
        ("dead-letter:evicted", "ttl"),
        ("stream:audit", "bounded:10100"),
        ("stream:events", f"bounded:{settings.events_maxlen + 100}"),
        ("retry:schedule", "always"),
        (f"(task|payload):{task_id}", "always"),
        (f"attempts:{task_id}", "bounded:50"),
        ("(task|payload|attempts|result):.*", "ttl"),
        (f"idempotency:{scope}", "always"),
        ("(idempotency|operation):.*", "ttl"),
        ("index:finished", f"bounded:{settings.retention_max_tasks}"),
        (f"index:{queue}:[a-z_]+", "always"),
        (f"counter:({queue}|_other)", "bounded:30000"),
        ("counted:(queues|types)", "bounded:1000"),
        ("counter:[^:]+:[0-9]+", "ttl"),
        ("gauges:[0-9]+", "ttl"),
        ("queues", f"bounded:{settings.max_queues}"),
        ("queue:[^:]+:paused", "always"),
        ("bulk:.*", "ttl"),
        ("bulks", "bounded:200"),
        ("bulks:open", "bounded:20"),
        ("worker:.*", "ttl"),
        ("workers|workers:leases", "bounded:100"),
        ("lock:scheduler|barrier", "ttl"),
    ]
