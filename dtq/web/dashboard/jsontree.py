"""JSON for people: a tree that folds, without what must not be seen, and no larger than a page can bear."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

MOST_NODES = 300
"""Values that are drawn; what is beyond is counted."""
OPEN_DEPTH = 3
MOST_TEXT = 2_000
"""Characters of one string that are drawn."""
MASK = "••••••"

_NOT_ALNUM = re.compile(r"[^a-z0-9]")


@dataclass(slots=True, kw_only=True)
class Node:
    """A value, and what it is called in what holds it."""

    kind: Literal["object", "array", "string", "number", "word", "hidden"]
    text: str = ""
    name: str | None = None
    count: int = 0
    """How many values an object or an array has, drawn or not."""
    children: list[Node] = field(default_factory=list)
    unfolded: bool = False

    @property
    def left_out(self) -> int:
        """How many of its values are not drawn."""
        return self.count - len(self.children)


class Redactor:
    """Knows which keys of payloads, results and metadata hold what must not be seen."""

    def __init__(self, words: Iterable[str]) -> None:
        """words: a key that has one of them in it, whatever its case and punctuation, is hidden."""
        self._words: Sequence[str] = tuple(word for word in map(_bare, words) if word)

    def hides(self, key: str) -> bool:
        """Whether the value of a key is hidden."""
        bare = _bare(key)
        return any(word in bare for word in self._words)

    def redacted(self, value: Any) -> tuple[Any, int]:
        """Return a copy of a JSON value without what is hidden, and how many values are."""
        if isinstance(value, dict):
            made, hidden = {}, 0
            for key, inner in value.items():
                made[key], more = (MASK, 1) if self.hides(key) else self.redacted(inner)
                hidden += more
            return made, hidden
        if isinstance(value, list):
            pairs = [self.redacted(inner) for inner in value]
            return [inner for inner, _ in pairs], sum(hidden for _, hidden in pairs)
        return value, 0


def tree(value: Any, redactor: Redactor, most_nodes: int = MOST_NODES) -> Node:
    """Return the tree of a JSON value. The upper levels are drawn before the lower ones are begun."""
    root = _node(value, None)
    level, left = [(root, value)], most_nodes
    depth = 0
    while level and left > 0:
        below: list[tuple[Node, Any]] = []
        for node, held in level:
            node.unfolded = depth < OPEN_DEPTH and (depth == 0 or node.count <= 20)
            for name, inner in islice(_held(held), left):
                left -= 1
                hidden = name is not None and redactor.hides(name)
                child = Node(kind="hidden", text=MASK, name=name) if hidden else _node(inner, name)
                node.children.append(child)
                if child.count:
                    below.append((child, inner))
        level, depth = below, depth + 1
    return root


def _held(value: Any) -> Iterable[tuple[str | None, Any]]:
    """Return what an object or an array holds."""
    if isinstance(value, dict):
        return value.items()
    return ((None, inner) for inner in value) if isinstance(value, list) else ()


def _node(value: Any, name: str | None) -> Node:
    if isinstance(value, dict):
        return Node(kind="object", name=name, count=len(value))
    if isinstance(value, list):
        return Node(kind="array", name=name, count=len(value))
    if isinstance(value, str):
        cut = value if len(value) <= MOST_TEXT else f"{value[:MOST_TEXT]}… ({len(value):,} characters)"
        return Node(kind="string", text=json.dumps(cut, ensure_ascii=False), name=name)
    if value is None or isinstance(value, bool):
        return Node(kind="word", text=json.dumps(value), name=name)
    text = json.dumps(value)
    return Node(kind="number", text=text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "…", name=name)


def _bare(key: str) -> str:
    return _NOT_ALNUM.sub("", key.lower())


NOTHING_HIDDEN = Redactor(())
"""For who has asked to see it all."""
