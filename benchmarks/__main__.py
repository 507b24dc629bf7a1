"""`python -m benchmarks [CASE ...] [--reps N] [--scale F]`: medians and spread, as a Markdown table."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence

from benchmarks import cases, messages

CASES = {**cases.CASES, **messages.CASES}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that are named, all of them by default. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--reps", type=int, default=3, help="how often each case runs")
    parser.add_argument("--scale", type=float, default=1.0, help="0.1: a tenth of the tasks")
    asked = parser.parse_args(argv)
    if unknown := set(asked.cases) - CASES.keys():
        parser.error(f"there is no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    print("| case | figure | median | lowest | highest |\n|---|---|--:|--:|--:|")
    for name in asked.cases or CASES:
        runs = [CASES[name](asked.scale) for _ in range(asked.reps)]
        for row in _rows(name, runs):
            print(row, flush=True)
    return 0


def _rows(name: str, runs: Sequence[Mapping[str, float]]) -> list[str]:
    rows = []
    for figure in runs[0]:
        values = [run[figure] for run in runs]
        numbers = (statistics.median(values), min(values), max(values))
        rows.append(f"| {name} | {figure} | " + " | ".join(_short(number) for number in numbers) + " |")
    return rows


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


if __name__ == "__main__":
    sys.exit(main())
