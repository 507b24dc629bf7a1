"""Figures of several repetitions as Markdown: medians, and between which values they lay."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from benchmarks.environments import PROJECT, sections
from benchmarks.stand import find_program


def cell(values: Sequence[float]) -> str:
    """Return the median of the values and, where they differ, their spread; a dash for none."""
    if not values:
        return "-"
    middle, low, high = (short(value) for value in (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


def short(value: float) -> str:
    """Return a number with as many digits as mean something."""
    if abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}" if value else "0"


def table(corner: str, columns: Sequence[str], rows: Iterable[tuple[str, Mapping[str, Sequence[float]]]]) -> str:
    """Return a table with a row for each name. columns: those that no row has are left out."""
    rows = list(rows)
    kept = [column for column in columns if any(figures.get(column) for _, figures in rows)]
    lines = [_line(corner, kept), "|---|" + "--:|" * len(kept)]
    lines += [_line(name, [cell(figures.get(column, ())) for column in kept]) for name, figures in rows]
    return "\n".join(lines)


def _line(first: str, others: Sequence[str]) -> str:
    return "| " + " | ".join([first, *others]) + " |"


def write_into(document: str, parts: Mapping[str, str]) -> None:
    """Replace what stands in a document between `<!-- NAME -->` and `<!-- end -->`, for each part that it has."""
    path = PROJECT / document
    text = path.read_text()
    for name, part in parts.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if begin and end:
            text = f"{before}{begin}\n{part}\n\n{end}{after}"
    path.write_text(text)


def setting(repetitions: int, scale: float) -> str:
    """Return where and with what this is measured."""
    program = find_program()
    server = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    machine = f"{os.cpu_count()} processors ({_processor()}), {platform.system()} {platform.release()}"
    ours = ", ".join(f"{name} {version(name)}" for name in ("redis", "hiredis", "gunicorn", "flask"))
    beside = ", ".join(text.split()[0] for text in sections().values())
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, {machine}, Python {platform.python_version()}",
        " ".join((server or program).split()[:3]),
        f"{repetitions} repetitions, scale {scale:g}; load of the machine before {os.getloadavg()[0]:.1f}",
        f"dtq with {ours}; beside {beside}",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
