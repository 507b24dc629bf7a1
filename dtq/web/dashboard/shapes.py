"""The geometry of the charts: numbers to the paths of SVG. Straight lines only: a curve would invent values."""

from __future__ import annotations

import math
from collections.abc import Sequence

Values = Sequence[float | None]


def top_of(*series: Values, least: float = 1) -> float:
    """Return the value at the upper edge of a chart: the next round number, so that it does not tremble."""
    most = max((value for values in series for value in values if value is not None), default=0)
    if most <= least:
        return least
    magnitude = 10.0 ** math.floor(math.log10(most))
    return next(step * magnitude for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * magnitude >= most)


def stacked(*series: Sequence[float]) -> list[float]:
    """Return the heights of bars that stand on each other."""
    return [sum(values) for values in zip(*series, strict=True)]


def steps(values: Sequence[float], top: float, height: float) -> str:
    """Return the path of columns that touch each other, each four wide, from the ground up."""
    pieces, level = [f"M0 {height:g}"], height
    for at, value in enumerate(values):
        tall = max(value * height / top, 1.0) if value > 0 else 0
        if round(height - tall, 1) != level:
            level = round(height - tall, 1)
            pieces.append(f"{f'H{4 * at}' if at else ''}V{level:g}")
    return "".join([*pieces, f"H{4 * len(values)}V{height:g}z"])


def bars(values: Sequence[float], top: float, height: float) -> str:
    """Return the path of a row of bars, each three wide and a gap, from the ground up."""
    tall = [(at, max(value * height / top, 1.5)) for at, value in enumerate(values) if value > 0]
    return "".join(f"M{4 * at} {height:g}v{-size:.1f}h3v{size:.1f}z" for at, size in tall)


def line(values: Values, top: float, width: float, height: float) -> str:
    """Return the path of a line through the values; it breaks where nothing is known."""
    return "".join(
        ("M" if begins else "L") + f"{x:.1f} {y:.1f}" for begins, x, y in _points(values, top, width, height)
    )


def area(values: Values, top: float, width: float, height: float) -> str:
    """Return the path of what is below the line."""
    pieces: list[str] = []
    last = 0.0
    for begins, x, y in _points(values, top, width, height):
        if begins:
            pieces.append(f"V{height:g}z" if pieces else "")
            pieces.append(f"M{x:.1f} {height:g}")
        pieces.append(f"L{x:.1f} {y:.1f}")
        last = x
    return "".join(pieces) + (f"L{last:.1f} {height:g}z" if pieces else "")


def _points(values: Values, top: float, width: float, height: float) -> list[tuple[bool, float, float]]:
    step = width / max(len(values) - 1, 1)
    found, begins = [], True
    for at, value in enumerate(values):
        if value is None:
            begins = True
            continue
        found.append((begins, at * step, height - min(value, top) * height / top))
        if begins and (at + 1 == len(values) or values[at + 1] is None):  # a point alone is a short line
            found.append((False, min(at * step + step / 2, width), height - min(value, top) * height / top))
        begins = False
    return found


def shares(parts: Sequence[tuple[str, float]]) -> list[tuple[str, float, float]]:
    """Return (name, start, length) of the parts of a whole in percent; what is there is at least seen."""
    there = [(name, amount) for name, amount in parts if amount > 0]
    whole = sum(amount for _, amount in there)
    lengths = [max(100 * amount / whole, 1.5) for _, amount in there]
    scale = 100 / sum(lengths) if lengths else 1
    found, start = [], 0.0
    for (name, _), length in zip(there, lengths, strict=True):
        found.append((name, round(start, 2), round(length * scale, 2)))
        start += length * scale
    return found
