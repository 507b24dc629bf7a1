"""`python -m benchmarks [GROUP ...]`: measures dtq beside others, and prints Markdown. See docs/performance.md.

Groups: peers (every system, every case), http, crash, own (what only dtq is asked), growth, messages (the queue
beside the engine). By default all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import cleandoc

from benchmarks import crash, growth, messages, own, web
from benchmarks.environments import HOME, python_of
from benchmarks.peers import CASES
from benchmarks.stand import Figures, stand
from benchmarks.systems import SYSTEMS, system_of
from benchmarks.table import setting, table, write_into

GROUPS = ("peers", "http", "crash", "own", "growth", "messages")
ONCE = ("own", "growth")
"""Groups that take minutes: measured once, whatever the repetitions."""
DOCUMENT = "docs/performance.md"
SMALL = 0.1
"""Up to this scale the sizes of `growth` shrink too: it is to see whether everything runs."""
_APART = {"own": own.CASES, "messages": messages.CASES}
"""Groups whose cases have tables of their own."""
_CASES = {"peers": CASES, **_APART}
Gathered = dict[str, dict[str, list[float]]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for. Returns the exit status: 1 when something could not be measured."""
    asked = arguments(argv)
    names = asked.systems.split(",")
    for name in names:
        python_of(name)
    parts = {"setting": setting(asked.reps, asked.scale)}
    print(parts["setting"], flush=True)
    raw: dict[str, object] = dict(parts)
    complete = True
    for group in asked.groups:
        if group == "crash":
            told = crash.crash(names, asked.crash_wait)
            raw[group], parts[group] = told, crash.as_table(told, asked.crash_wait)
        else:
            found: Gathered = defaultdict(lambda: defaultdict(list))
            for repetition in range(1 if group in ONCE else asked.reps):
                for row, measure in _measures(group, names, asked):
                    complete &= _gather(found[row], f"{group}: {row}, repetition {repetition + 1}", measure)
            raw[group], parts[group] = found, _tables(group, found)
        print(f"\n## {group}\n\n{parts[group]}", flush=True)
    HOME.mkdir(exist_ok=True)
    (HOME / "last.json").write_text(json.dumps(raw, indent=1))
    if asked.write:
        write_into(DOCUMENT, parts)
    return 0 if complete else 1


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return what was asked for. Ends the program where that is not understood."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--systems", default=",".join(system.name for system in SYSTEMS), help="which are measured")
    parser.add_argument(
        "--cases", default="", help="; ".join(f"{of}: {','.join(cases)}" for of, cases in _CASES.items())
    )
    parser.add_argument("--reps", type=int, default=3, help="how often each is measured, in turn")
    parser.add_argument("--scale", type=float, default=1.0, help="0.1: a tenth of the tasks, and of the time")
    parser.add_argument("--crash-wait", type=float, default=120.0, help="seconds until a task counts as lost")
    parser.add_argument("--quick", action="store_true", help="once, a twentieth, nothing to install: a few minutes")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {DOCUMENT}")
    asked = parser.parse_args(argv)
    if asked.quick:
        asked.systems, asked.reps, asked.scale, asked.crash_wait = "bare,dtq", 1, 0.05, 45.0
    asked.groups = asked.groups or list(GROUPS)
    if unknown := set(asked.groups) - set(GROUPS):
        parser.error(f"there is no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    if unknown := set(asked.systems.split(",")) - {system.name for system in SYSTEMS}:
        parser.error(f"there is no system {', '.join(sorted(unknown))}")
    return asked


def _measures(group: str, names: Sequence[str], asked: argparse.Namespace) -> list[tuple[str, Callable[[], Figures]]]:
    """Return what a group measures, each a row of its table, in the order of one repetition."""
    chosen, scale = asked.cases.split(",") if asked.cases else [], asked.scale
    if group == "peers":
        cases = [case for case in CASES if not chosen or case in chosen]
        return [(name, partial(_beside, name, case, scale)) for case in cases for name in names]
    if group == "http":
        rows = [row for row in web.ROWS if "+" not in row or row.split()[-1] in names]
        return [(row, partial(_over_http, row, scale)) for row in rows]
    if group == "growth":
        sizes = [int(size * scale) if scale <= SMALL else size for size in growth.SIZES]
        return [(f"{size:,} tasks".replace(",", " "), partial(growth.grown, size)) for size in sizes]
    asked_of = _APART[group]
    return [(case, partial(asked_of[case], scale)) for case in asked_of if not chosen or case in chosen]


def _beside(name: str, case: str, scale: float) -> Figures:
    with stand() as found:
        return CASES[case](found, system_of(name), scale)


def _over_http(name: str, scale: float) -> Figures:
    with stand() as found:
        return web.over_http(found, name, scale)


def _gather(row: dict[str, list[float]], what: str, measure: Callable[[], Figures]) -> bool:
    """Add the figures of one measurement to its row. Returns whether it could be made."""
    try:
        figures = measure()
    except Exception:
        print(f"{what}: could not be measured\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return False
    print(what, {name: round(value, 2) for name, value in figures.items()}, file=sys.stderr, flush=True)
    for name, value in figures.items():
        row.setdefault(name, []).append(value)
    return True


def _tables(group: str, found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    if group == "peers":
        rows = _with_shares(found, "bare", "drained/s")
        return "\n\n".join(table(told, columns, rows) for told, columns in _PEERS.items())
    if group == "http":
        return table("", _HTTP, _with_shares(found, "flask alone", "requests/s"))
    if group == "growth":
        columns = list(dict.fromkeys(name for figures in found.values() for name in figures))
        return table("us", columns, found.items())
    told = {case: cleandoc(_APART[group][case].__doc__ or "") for case in found}
    return "\n\n".join(
        f"{told[case]}\n\n{table(case, list(figures), [('', figures)])}" for case, figures in found.items()
    )


_PEERS: Mapping[str, Sequence[str]] = {
    "speed": ("drained/s", "of bare", "one by one/s", "bulk/s", "naps of ideal", "p50 ms", "p99 ms"),
    "cost of a task": (
        *("client CPU us", "client CPU us in bulk", "worker CPU us", "Redis CPU us to submit", "Redis CPU us in bulk"),
        *("Redis CPU us", "commands", "round trips"),
    ),
    "memory, and an idle worker": ("RSS MiB", "bytes queued", "bytes finished", "idle calls/s", "idle CPU %"),
}
_HTTP = (
    *("requests/s", "of flask alone", "tasks/s", "p50 ms", "p99 ms", "server CPU us a request", "Redis CPU us a task"),
    "RSS MiB",
)


def _with_shares(
    found: Mapping[str, Mapping[str, Sequence[float]]], base_row: str, figure: str
) -> list[tuple[str, Mapping[str, Sequence[float]]]]:
    """Put the share of the base beside each figure, repetition by repetition."""
    base = found.get(base_row, {}).get(figure, ())
    rows: list[tuple[str, Mapping[str, Sequence[float]]]] = []
    for row, figures in found.items():
        shares = [value / limit for value, limit in zip(figures.get(figure, ()), base, strict=False)]
        rows.append((row, {**figures, f"of {base_row}": shares}))
    return rows


if __name__ == "__main__":
    sys.exit(main())
