"""The state diagram of the documentation, drawn from the table: `python -m dtq.diagram` writes it where it belongs."""

from __future__ import annotations

import sys
from pathlib import Path

from dtq.states import TERMINAL, TRANSITIONS, Status

DOCUMENT = Path("docs/architecture.md")
BEGIN, END = "<!-- states: made by python -m dtq.diagram -->", "<!-- end of states -->"


def mermaid() -> str:
    """Return the diagram as Mermaid text: one arrow a pair of statuses, with all the events that lead along it."""
    arrows: dict[tuple[Status, Status], list[str]] = {}
    for (status, event), after in TRANSITIONS.items():
        arrows.setdefault((status, after), []).append(event.value)
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> queued: submit", "    [*] --> pending: submit with a delay"]
    lines += [f"    {before} --> {after}: {', '.join(events)}" for (before, after), events in arrows.items()]
    lines += [f"    {status} --> [*]" for status in Status if status in TERMINAL]
    return "\n".join([*lines, "```"])


def placed_in(text: str) -> str:
    """Return a document with the diagram between its two marks. Raises ValueError when a mark is missing."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"the document lacks {BEGIN!r} or {END!r}")
    return f"{before}{BEGIN}\n\n{mermaid()}\n\n{END}{after}"


def main() -> int:
    """Write the diagram into the document. Returns the exit status."""
    DOCUMENT.write_text(placed_in(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
