"""Loads the Lua scripts and runs them by name, with named arguments.

A script file is Lua with four directives, each replaced on its own line, so line numbers in errors stay true:

    --@include clock journal        the fragments lib/clock.lua and lib/journal.lua, once each, in order of need
    --@args worker limit            local worker, limit = ARGV[1], ARGV[2]
    --@items id seq                 what follows repeats: ITEMS is the first index, ITEM the number of fields
    --@item at                      local id, seq = unpack(ARGV, at, at + 1)

`key.task(id)` becomes the name that `Keys` gives, spelled out, and names in CAPITALS that `limits` holds become
numbers: a script costs nothing for what it does not use. Sources differ by namespace and settings, and so do their
digests.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from dtq.errors import RedisUnavailable
from dtq.keys import GROUP, PARKED, SCHEMA_VERSION, Keys
from dtq.redisio import NoScript, Server

Argument = bytes | str | int | float

_INCLUDE = re.compile(r"^--@include (.+)$", re.MULTILINE)
_ARGS = re.compile(r"^--@args ?(.*)$", re.MULTILINE)
_ITEMS = re.compile(r"^--@items (.+)$", re.MULTILINE)
_ITEM = re.compile(r"--@item (\w+)$", re.MULTILINE)
_KEY = re.compile(r"key\.(\w+)\(([^()]*)\)")
_CONSTANT = re.compile(r"\b[A-Z][A-Z_]{2,}\b")


@dataclass(frozen=True, slots=True)
class Script:
    """A compiled script: its source in one namespace, its SHA-1, and the names that its arguments have."""

    name: str
    source: str
    sha: str
    args: tuple[str, ...]
    items: tuple[str, ...]


class Scripts:
    """The scripts of one namespace on one server."""

    def __init__(self, server: Server, keys: Keys, limits: Mapping[str, int]) -> None:
        """limits: numbers that scripts name in CAPITALS: maximum lengths, lifetimes in ms."""
        self._server = server
        self._keys = keys
        self._anchor = keys.anchor
        self._constants: dict[str, str] = {name: str(int(value)) for name, value in limits.items()}
        self._constants |= {
            "SCHEMA_VERSION": str(SCHEMA_VERSION),
            "WORKER_GROUP": f"'{GROUP}'",
            "PARKED": f"'{PARKED}'",
        }
        self._compiled: dict[str, Script] = {}

    def script(self, name: str) -> Script:
        """Return the compiled script `name`. Raises FileNotFoundError when there is no such file."""
        found = self._compiled.get(name)
        if found is None:
            found = self._compiled[name] = self._compile(name)
        return found

    def run(
        self, name: str, /, *, items: Iterable[Sequence[Argument]] = (), repeat: bool = True, **args: Argument
    ) -> Any:
        """Run a script and return its raw reply.

        items: rows of the values that `--@items` names, in that order.
        repeat: whether the script answers the same when it is run twice, so that it may be sent once more after a
            connection broke in the middle. Only the claim is not so; what it took is settled instead.
        Raises TypeError for a missing or unknown argument, RedisUnavailable, RedisFull, redisio.CommandError.
        """
        script = self.script(name)
        try:
            values: list[Argument] = [args[argument] for argument in script.args]
            fits = len(values) == len(args)
        except KeyError:
            fits = False
        if not fits:
            raise TypeError(f"{name} takes {script.args}, not {tuple(args)}")
        for item in items:
            values.extend(item)
        try:
            return self._send(script, values)
        except RedisUnavailable as error:
            if not repeat or error.context.get("reason") not in ("unreachable", "moved", "readonly"):
                raise
            return self._send(script, values)

    def _send(self, script: Script, values: Sequence[Argument]) -> Any:
        try:
            return self._server.call("EVALSHA", script.sha, 1, self._anchor, *values)
        except NoScript:  # the server was restarted, failed over, or told SCRIPT FLUSH: EVAL loads it again
            return self._server.call("EVAL", script.source, 1, self._anchor, *values)

    def _compile(self, name: str) -> Script:
        own = _read(f"{name}.lua")
        args, items = _names(_ARGS, own), _names(_ITEMS, own)
        source = "\n".join([*self._fragments(own, seen=[]), own])
        source = _ARGS.sub(lambda match: _declare(args, "ARGV[{}]"), source)
        source = _ITEMS.sub(f"local ITEMS, ITEM = {len(args) + 1}, {len(items)}", source)
        source = _ITEM.sub(
            lambda match: f"local {', '.join(items)} = unpack(ARGV, {match[1]}, {match[1]} + {len(items) - 1})", source
        )
        source = _KEY.sub(self._key, source)
        source = _CONSTANT.sub(lambda match: self._constants.get(match[0], match[0]), source)
        return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(), args, items)

    def _fragments(self, source: str, seen: list[str]) -> list[str]:
        texts = []
        for name in _names(_INCLUDE, source):
            if name not in seen:
                seen.append(name)
                text = _read(f"lib/{name}.lua")
                texts += [*self._fragments(text, seen), text]
        return texts

    def _key(self, match: re.Match[str]) -> str:
        """Spell a key out: key.stream(queue, band) -> ('dtq:stream:'..queue..':p'..band)."""
        return self._keys.as_lua(match[1], [part.strip() for part in match[2].split(",") if part.strip()])


def _read(name: str) -> str:
    text = (resources.files("dtq") / "lua" / name).read_text(encoding="utf-8")
    return re.sub(r"--\[\[.*?\]\]", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)


def _names(directive: re.Pattern[str], source: str) -> tuple[str, ...]:
    found = directive.search(source)
    return tuple(found[1].split()) if found else ()


def _declare(names: Sequence[str], value: str) -> str:
    if not names:
        return ""
    return f"local {', '.join(names)} = " + ", ".join(value.format(index) for index in range(1, len(names) + 1))
