"""Tables and pairs for people: they fit the terminal, and nothing stored can move its cursor."""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click

from dtq.commands.console import on_terminal
from dtq.log import escape

GAP = "  "
LEAST = 6
"""Characters that a column keeps when it is cut."""
_ELLIPSIS = "…"

STATUS_COLOURS = {
    "pending": "blue",
    "queued": "cyan",
    "running": "yellow",
    "retrying": "magenta",
    "succeeded": "green",
    "failed": "red",
    "dead_lettered": "red",
    "cancelled": "bright_black",
    "expired": "bright_black",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    name: str
    cut: bool = False
    """Whether its values may be cut to fit."""
    right: bool = False
    optional: bool = False
    """Whether it may be left out to fit; the last one first."""
    status: bool = False
    """Whether its values are statuses, and coloured."""


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Write a table to stdout. empty: what is said, on stderr, when there are no rows."""
    texts = [[escape(str(value)) for value in row] for row in rows]
    if not texts:
        click.echo(empty, err=True)
        return
    widths = [
        max(display_width(column.name), *(display_width(row[index]) for row in texts))
        for index, column in enumerate(columns)
    ]
    shown = _fit(columns, widths, table_width())
    click.secho(_line([(columns[i], columns[i].name) for i in shown], [widths[i] for i in shown]), bold=True)
    for row in texts:
        click.echo(_line([(columns[i], row[i]) for i in shown], [widths[i] for i in shown], coloured=True))


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Write names and values, one a line; those whose value is None or empty are left out."""
    shown = [(name, escape(str(value))) for name, value in pairs if value not in (None, "", (), [], {})]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        text = click.style(value, fg=STATUS_COLOURS.get(value)) if name == "status" else value
        click.echo(f"{click.style(name.ljust(width), bold=True)}{GAP}{text}")


def table_width() -> int | None:
    """Return the columns of the terminal; None where output goes to a file or a program: nothing is cut there."""
    if on_terminal() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size().columns
    return None


def display_width(text: str) -> int:
    """Return how many columns a terminal needs for a text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def cut(text: str, width: int) -> str:
    """Return a text that needs at most `width` columns, with an ellipsis where something is missing."""
    if display_width(text) <= width:
        return text
    kept, used = [], 0
    for char in text:
        used += display_width(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept) + _ELLIPSIS


def _fit(columns: Sequence[Column], widths: list[int], limit: int | None) -> list[int]:
    """Return the indexes of the columns to show; changes the widths of those that are cut."""
    shown = list(range(len(columns)))
    while limit is not None:
        excess = sum(widths[i] for i in shown) + len(GAP) * (len(shown) - 1) - limit
        if excess <= 0:
            break
        least = {i: min(widths[i], max(LEAST, len(columns[i].name))) for i in shown if columns[i].cut}
        if excess <= sum(widths[i] - least[i] for i in least):
            for _ in range(excess):
                widest = max((i for i in least if widths[i] > least[i]), key=widths.__getitem__)
                widths[widest] -= 1
            break
        droppable = [i for i in shown if columns[i].optional]
        if not droppable:
            for i, width in least.items():
                widths[i] = width
            break
        shown.remove(droppable[-1])
    return shown


def _line(cells: Sequence[tuple[Column, str]], widths: Sequence[int], *, coloured: bool = False) -> str:
    parts = []
    for (column, text), width in zip(cells, widths, strict=True):
        value = cut(text, width) if column.cut else text
        padding = " " * max(0, width - display_width(value))
        if coloured and column.status:
            value = click.style(value, fg=STATUS_COLOURS.get(value))
        parts.append(padding + value if column.right else value + padding)
    return GAP.join(parts).rstrip()
