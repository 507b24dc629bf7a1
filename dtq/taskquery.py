"""The language in which people ask for tasks: `status:dead_lettered type:email.* error:"refused" age>10m tag:x`.

Clauses are joined by "and". `parse` never raises: what it does not understand is told, clause by clause, and the rest
holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from dtq.keys import QUEUE_NAME
from dtq.states import BANDS, Status

KEYS = ("status", "type", "queue", "tag", "error", "class", "reason", "worker", "priority", "age")
MAX_CHARS = 1_000
MAX_CLAUSES = 20

_CLAUSE = re.compile(
    r'(?P<key>[a-z_]+)(?P<sign>[:<>])(?P<value>"(?:[^"\\]|\\.)*"?|\S*)|(?P<word>"(?:[^"\\]|\\.)*"?|\S+)'
)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_ESCAPED = re.compile(r"\\(.)")
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d)")
_Reader = Callable[["TaskQuery", str, str], None]
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_STATUSES = {status.value: status for status in Status} | {"dead": Status.DEAD_LETTERED, "waiting": Status.QUEUED}


@dataclass(frozen=True, slots=True)
class Clause:
    """One part of a query, as it was written."""

    text: str
    problem: str = ""
    """What is wrong with it; empty when it holds."""


@dataclass(slots=True, kw_only=True)
class TaskQuery:
    """What was asked for. None, and nothing, mean any."""

    text: str = ""
    clauses: list[Clause] = field(default_factory=list)
    statuses: tuple[Status, ...] = ()
    queue: str | None = None
    task_type: str | None = None
    """With `*` for any characters."""
    tags: list[str] = field(default_factory=list)
    error: str | None = None
    error_class: str | None = None
    reason: str | None = None
    worker: str | None = None
    priority: int | None = None
    older_than_s: float | None = None
    younger_than_s: float | None = None
    words: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[Clause]:
        """The clauses that do not hold."""
        return [clause for clause in self.clauses if clause.problem]

    def refuse(self, key: str, why: str) -> None:
        """Let the clauses of a key not hold, with a reason."""
        self.clauses = [
            Clause(one.text, why) if re.match(rf"{key}[:<>]", one.text) and not one.problem else one
            for one in self.clauses
        ]

    def without(self, clause: Clause) -> str:
        """Return the text of the query without one of its clauses."""
        return " ".join(one.text for one in self.clauses if one is not clause)

    def having(self, key: str, value: str) -> str:
        """Return the text of the query with the clauses of a key replaced by one; an empty value removes them."""
        kept = [one.text for one in self.clauses if not re.match(rf"{key}[:<>]", one.text)]
        return " ".join([*kept, f"{key}:{quoted(value)}"] if value else kept)


def parse(text: str) -> TaskQuery:
    """Read a query. What is beyond MAX_CHARS or MAX_CLAUSES is not read, and told."""
    query = TaskQuery(text=text.strip()[:MAX_CHARS])
    for found in _CLAUSE.finditer(query.text):
        said, problem = found[0], ""
        if len(query.clauses) == MAX_CLAUSES:
            query.clauses.append(Clause(query.text[found.start() :], f"more than {MAX_CLAUSES} clauses"))
            break
        try:
            if found["word"] is not None:
                query.words.append(_plain(found["word"]).lower())
            else:
                _READERS.get(found["key"], _unknown)(query, found["sign"], _plain(found["value"]))
        except ValueError as error:
            problem = str(error)
        query.clauses.append(Clause(said, problem))
    if len(text.strip()) > MAX_CHARS:
        query.clauses.append(Clause("…", f"longer than {MAX_CHARS} characters"))
    return query


def quoted(value: str) -> str:
    """Return a value as a clause has it: in quotes where it must be."""
    if re.fullmatch(r'[^\s"\\]+', value):
        return value
    escaped = re.sub(r'(["\\])', r"\\\1", value)
    return f'"{escaped}"'


def _plain(value: str) -> str:
    if not value.startswith('"'):
        return value
    if not _QUOTED.fullmatch(value):
        raise ValueError("the quotation does not end")
    return _ESCAPED.sub(r"\1", value[1:-1])


def _unknown(query: TaskQuery, sign: str, value: str) -> NoReturn:
    raise ValueError(f"there is no such key; there are {', '.join(KEYS)}")


def _status(query: TaskQuery, sign: str, value: str) -> None:
    found = []
    for name in value.split(","):
        status = _STATUSES.get(name.lower())
        if status is None:
            raise ValueError(f"a status is one of {', '.join(Status)}")
        found.append(status)
    query.statuses = tuple(dict.fromkeys(found))


def _queue(query: TaskQuery, sign: str, value: str) -> None:
    if not QUEUE_NAME.fullmatch(value):
        raise ValueError("a queue is 1 to 64 of a-z 0-9 _ -")
    query.queue = value


def _type(query: TaskQuery, sign: str, value: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_.:*-]{1,128}", value):
        raise ValueError("a type is 1 to 128 of A-Z a-z 0-9 _ . : -, with * for any")
    query.task_type = value


def _priority(query: TaskQuery, sign: str, value: str) -> None:
    if not (value.isascii() and value.isdigit() and int(value) in BANDS):
        raise ValueError("a priority is a number from 0 to 9")
    query.priority = int(value)


def _age(query: TaskQuery, sign: str, value: str) -> None:
    found = _AGE.fullmatch(value)
    if sign == ":" or found is None:
        raise ValueError("say age>10m or age<2h, in ms, s, m, h or d")
    seconds = float(found[1]) * _UNITS[found[2]]
    if sign == ">":
        query.older_than_s = seconds
    else:
        query.younger_than_s = seconds


def _tag(query: TaskQuery, sign: str, value: str) -> None:
    query.tags.append(_filled(value))


def _error(query: TaskQuery, sign: str, value: str) -> None:
    query.error = _filled(value).lower()


def _class(query: TaskQuery, sign: str, value: str) -> None:
    query.error_class = _filled(value)


def _reason(query: TaskQuery, sign: str, value: str) -> None:
    query.reason = _filled(value)


def _worker(query: TaskQuery, sign: str, value: str) -> None:
    query.worker = _filled(value)


def _filled(value: str) -> str:
    if not value:
        raise ValueError("it is empty")
    return value


def _only_colon(reader: _Reader) -> _Reader:
    def read(query: TaskQuery, sign: str, value: str) -> None:
        if sign != ":":
            raise ValueError("only age has < and >")
        reader(query, sign, value)

    return read


_READERS: Mapping[str, _Reader] = {
    "status": _only_colon(_status),
    "type": _only_colon(_type),
    "queue": _only_colon(_queue),
    "tag": _only_colon(_tag),
    "error": _only_colon(_error),
    "class": _only_colon(_class),
    "reason": _only_colon(_reason),
    "worker": _only_colon(_worker),
    "priority": _only_colon(_priority),
    "age": _age,
}
