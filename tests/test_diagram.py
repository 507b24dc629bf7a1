"""The diagram in the documentation is the table in the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtq import diagram
from dtq.states import TRANSITIONS

ROOT = Path(__file__).parent.parent


def test_the_documented_diagram_is_drawn_from_the_table():
    text = (ROOT / diagram.DOCUMENT).read_text(encoding="utf-8")
    assert diagram.placed_in(text) == text, "run: python -m dtq.diagram"


def test_every_transition_is_drawn():
    drawn = diagram.mermaid()
    for status, event in TRANSITIONS:
        assert any(line.strip().startswith(f"{status} -->") and event in line for line in drawn.splitlines())


def test_a_document_without_marks_is_refused():
    with pytest.raises(ValueError, match="lacks"):
        diagram.placed_in("no marks here")


def test_main_writes_the_diagram_between_the_marks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    diagram.DOCUMENT.write_text(f"before\n{diagram.BEGIN}\n{diagram.END}\nafter\n", encoding="utf-8")
    assert diagram.main() == 0
    assert diagram.mermaid() in diagram.DOCUMENT.read_text(encoding="utf-8")
