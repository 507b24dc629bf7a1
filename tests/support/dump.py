"""All that a namespace holds, as plain values that can be compared."""

from __future__ import annotations

import re
from typing import Any

from dtq.redisio import Server

_READS: dict[bytes, tuple[str | int, ...]] = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"list": ("LRANGE", 0, -1),
    b"set": ("SMEMBERS",),
    b"zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    b"stream": ("XRANGE", "-", "+"),
}


def namespace_of(server: Server) -> str:
    """The default namespace, as its keys begin on a server: on a Cluster it stands in braces."""
    return "{dtq}" if server.kind == "cluster" else "dtq"


def names(server: Server, namespace: str = "") -> list[bytes]:
    """Every key of a namespace, by default the usual one, sorted."""
    namespace = namespace or namespace_of(server)
    found: set[bytes] = set()
    cursor: bytes = b"0"
    while True:
        cursor, part = server.call("SCAN", cursor, "MATCH", f"{namespace}:*", "COUNT", 1000)
        found.update(part)
        if cursor == b"0":
            return sorted(found)


def dump(server: Server, namespace: str = "") -> dict[str, Any]:
    """Return every key with its content and whether it expires; of a stream also what is pending, and with whom."""
    keys = names(server, namespace)
    types = server.pipeline([("TYPE", key) for key in keys])
    commands: list[tuple[Any, ...]] = []
    for key, kind in zip(keys, types, strict=True):
        first, *rest = _READS[kind]
        commands += [(first, key, *rest), ("PTTL", key)]
    replies = server.pipeline(commands)
    found: dict[str, Any] = {}
    for number, (key, kind) in enumerate(zip(keys, types, strict=True)):
        value, lifetime = replies[2 * number], replies[2 * number + 1]
        if kind == b"hash":
            value = dict(zip(value[::2], value[1::2], strict=True))
        elif kind == b"set":
            value = set(value)
        elif kind == b"stream":
            value = (value, _pending(server, key))
        found[key.decode()] = (value, lifetime >= 0)
    return found


def _pending(server: Server, stream: bytes) -> dict[str, list[tuple[bytes, bytes]]]:
    groups: dict[str, list[tuple[bytes, bytes]]] = {}
    for group in server.call("XINFO", "GROUPS", stream):
        name = dict(zip(group[::2], group[1::2], strict=True))[b"name"]
        rows = server.call("XPENDING", stream, name, "-", "+", 100_000)
        groups[name.decode()] = [(row[0], row[1]) for row in rows]
    return {name: rows for name, rows in groups.items() if rows}


_TASK_ID = re.compile(rb"(?<![0-9a-f])[0-9a-f]{12}7[0-9a-f]{19}(?![0-9a-f])")
_MINUTE = re.compile(r".*:counter:[^:]+:[0-9]+")
_TIME = re.compile(rb"\b1[0-9]{12,15}(-[0-9]+)?\b|\b1[0-9]{9}\.[0-9]+")
_TOKEN = re.compile(rb"\b[0-9a-f]{16}\b")


def shape(value: Any) -> Any:
    """Return a dump, or any part of it, without what differs from one run to the next: ids, times, tokens.

    Task ids become their rank, so that who is who stays visible. The counters of minutes are left out: a minute may
    have ended in one of the runs.
    """
    if isinstance(value, dict):
        value = {name: inner for name, inner in value.items() if not _MINUTE.fullmatch(name)}
    ids = sorted(set(_TASK_ID.findall(repr(value).encode())))
    ranks = {task_id: b"task-%d" % number for number, task_id in enumerate(ids)}

    def plain(part: Any) -> Any:
        if isinstance(part, str):
            return plain(part.encode()).decode()
        if isinstance(part, bytes):
            part = _TASK_ID.sub(lambda match: ranks[match[0]], part)
            return _TOKEN.sub(b"token", _TIME.sub(b"time", part))
        if isinstance(part, dict):
            return {plain(name): plain(inner) for name, inner in part.items()}
        if isinstance(part, list | tuple | set | frozenset):
            return [plain(inner) for inner in (sorted(part) if isinstance(part, set | frozenset) else part)]
        return part

    return plain(value)
