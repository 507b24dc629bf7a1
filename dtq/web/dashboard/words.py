"""How the pages say numbers, durations, sizes and times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

from flask import g
from markupsafe import Markup

from dtq.model import rfc3339
from dtq.states import Status
from dtq.web.dashboard.viewer import Viewer

NONE = "–"
"""What stands where nothing is known."""

STATUS = {status.value: status.value.replace("dead_lettered", "dead letter") for status in Status}
"""What a status is called in a sentence."""

_HELD = "\N{NO-BREAK SPACE}"
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_SHORT = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))


def duration(seconds: float | None) -> str:
    """Return a length of time in at most two units: 850 ms, 4.2 s, 2 m 5 s, 3 d 4 h."""
    return NONE if seconds is None else _duration(seconds).replace(" ", _HELD)


def _duration(seconds: float) -> str:
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for (unit, size), (next_unit, next_size) in pairwise(_UNITS):
        if whole >= size:
            number, rest = divmod(whole, size)
            return f"{number} {unit} {rest // next_size} {next_unit}" if rest // next_size else f"{number} {unit}"
    return f"{whole} s"


def ago(seconds: float) -> str:
    """Return how long ago something was, or in what time it will be, in one unit."""
    distance = abs(seconds)
    if distance < 1:
        return "now"
    unit, size = next((unit, size) for unit, size in _UNITS if distance >= size or size == 1)
    said = f"{math.floor(distance / size)}{_HELD}{unit}"
    return f"{said} ago" if seconds > 0 else f"in {said}"


def number(value: float | None) -> str:
    """Return a number with its thousands apart: 12,431."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.1f}"


def short_number(value: float | None) -> str:
    """Return a number in at most four characters: 12.4k."""
    if value is None:
        return NONE
    for size, unit in _SHORT:
        if value >= size * 9.995:
            return f"{value / size:.0f}{unit}" if value >= size * 99.95 else f"{value / size:.1f}{unit}"
    return number(value)


def share(part: float, whole: float) -> str:
    """Return a part as a percentage: 0.4 %, 12 %. Nothing of nothing is unknown."""
    if not whole:
        return NONE
    percent = 100 * part / whole
    return f"{percent:.1f}{_HELD}%" if 0 < percent < 9.95 else f"{percent:.0f}{_HELD}%"


def size(count: int) -> str:
    """Return a number of bytes: 812 B, 2.3 MB."""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def facts(told: Mapping[str, Any]) -> str:
    """Return names and values in a line, lengths of time (`_ms`, `_s`) as people say them; without what is empty."""
    return ", ".join(_fact(name, value) for name, value in told.items() if value not in (None, ""))


def _fact(name: str, value: object) -> str:
    for ending, seconds in (("_ms", 0.001), ("_s", 1.0)):
        if name.endswith(ending) and isinstance(value, int | float):
            return f"{name.removesuffix(ending).replace('_', ' ')} {duration(value * seconds)}"
    said = str(value).replace("_", " ") if name in ("reason", "state") else str(value)
    return f"{name.replace('_', ' ')} {said}"


def plural(count: int, word: str, many: str = "") -> str:
    """Return a counted word: 1 task, 12,431 tasks."""
    return f"{count:,} {word if count == 1 else many or word + 's'}"


def moment(seconds: float | None) -> Markup | str:
    """Return a `<time>` element: relative, absolute in the title, or the other way round, as the viewer likes it."""
    if seconds is None:
        return NONE
    viewer: Viewer = g.viewer
    absolute, relative = clock_time(seconds), ago(g.now - seconds)
    shown, title = (absolute, relative) if viewer.absolute else (relative, absolute)
    mark = "" if viewer.absolute else Markup(' data-at="{}"').format(f"{seconds:.3f}")
    return Markup('<time datetime="{}" title="{}"{}>{}</time>').format(rfc3339(seconds), title, mark, shown)


def ticking(seconds: float | None) -> Markup | str:
    """Return a length of time that lasts on: a page that has a script lets it grow."""
    if seconds is None:
        return NONE
    return Markup('<span data-since="{}">{}</span>').format(f"{g.now - seconds:.1f}", duration(seconds))


def clock_time(seconds: float) -> str:
    """Return a time as a clock and a calendar of the viewer's zone show it."""
    viewer: Viewer = g.viewer
    local = datetime.fromtimestamp(seconds, UTC).astimezone(viewer.zone)
    today = datetime.fromtimestamp(g.now, UTC).astimezone(viewer.zone).date()
    day = "" if local.date() == today else f"{local:%Y-%m-%d} "
    return f"{day}{local:%H:%M:%S} {viewer.zone_word(local)}"


def minute_of_day(minute: int) -> str:
    """Return a minute (epoch seconds / 60) as a clock of the viewer's zone shows it: 14:02."""
    viewer: Viewer = g.viewer
    return f"{datetime.fromtimestamp(minute * 60, UTC).astimezone(viewer.zone):%H:%M}"


def short_id(task_id: str) -> str:
    """Return the end of a task id: the beginning is the time of creation, alike for all of a minute."""
    return task_id[-8:]


def link(**query: str | None) -> str:
    """Return the query string of a link, with its question mark; empty when nothing is asked."""
    asked = {name: value for name, value in query.items() if value}
    return f"?{urlencode(asked)}" if asked else ""
