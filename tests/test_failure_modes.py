"""The table of failure modes names tests that there are."""

from __future__ import annotations

import re

from tests.support import PROJECT

NAMED = re.compile(r"`(test_\w+)`")


def _tests() -> set[str]:
    defined = re.compile(r"^\s*def (test_\w+)\(", re.MULTILINE)
    return {name for path in (PROJECT / "tests").rglob("test_*.py") for name in defined.findall(path.read_text())}


def test_every_failure_mode_is_shown_by_a_test_that_exists() -> None:
    text = (PROJECT / "docs" / "failure-modes.md").read_text()
    named = set(NAMED.findall(text))
    assert len(named) > 40
    assert named - _tests() == set()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| fault", "|--"))]
    assert [row for row in rows if not NAMED.search(row)] == []
