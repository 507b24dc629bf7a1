"""The check that no key outlives its purpose: each key of a namespace against the table of lifetimes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dtq.keys import Keys
from dtq.redisio import Server

BOUNDED_BY_DEFAULT = 100
"""Elements that "bounded" allows: a stream trimmed to about 64 keeps up to 100."""

_SIZES = {
    b"stream": "XLEN",
    b"zset": "ZCARD",
    b"set": "SCARD",
    b"hash": "HLEN",
    b"list": "LLEN",
    b"string": "STRLEN",
}


def check_keys(server: Server, keys: Keys, allowed: Sequence[tuple[str, str]]) -> None:
    """Fail (AssertionError, naming all that is wrong) when a key of the namespace breaks its rule, or has none.

    allowed: (regular expression for the whole name after `<namespace>:`, rule); the first that matches counts. Rules:
    "ttl": the key must expire. "always": it may stay. "bounded" or "bounded:<n>": it may stay with at most n elements
    (bytes, for a string).
    """
    prefix = f"{keys.namespace}:".encode()
    pattern = re.sub(r"([\[\]*?\\])", r"\\\1", keys.namespace)
    names: set[bytes] = set()
    cursor: bytes = b"0"
    while True:
        cursor, found = server.call("SCAN", cursor, "MATCH", f"{pattern}:*", "COUNT", 1000)
        names.update(found)
        if cursor == b"0":
            break
    shown = {name: name.removeprefix(prefix).decode(errors="replace") for name in sorted(names)}
    wrong = [_fault(server, name, text, allowed) for name, text in shown.items()]
    faults = [fault for fault in wrong if fault]
    assert not faults, "keys outside the table of lifetimes:\n" + "\n".join(faults)


def _fault(server: Server, key: bytes, name: str, allowed: Sequence[tuple[str, str]]) -> str:
    rule = next((rule for pattern, rule in allowed if re.fullmatch(pattern, name)), None)
    if rule is None:
        return f"{name}: no rule allows it"
    kind, _, limit = rule.partition(":")
    assert kind in ("ttl", "always", "bounded"), f"there is no rule {rule!r}"
    lifetime_ms, type_name = server.pipeline([("PTTL", key), ("TYPE", key)])
    if kind == "always" or lifetime_ms == -2:  # -2: it has expired since it was listed
        return ""
    if kind == "ttl":
        return "" if lifetime_ms >= 0 else f"{name}: never expires"
    size = server.call(_SIZES[type_name], key)
    most = int(limit or BOUNDED_BY_DEFAULT)
    return f"{name}: {size} elements, allowed are {most}" if size > most else ""
