"""The parts of the benchmarks that could tell something wrong: marks of several processes, and tables."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.__main__ import arguments
from benchmarks.record import DIRECTORY, Record
from benchmarks.systems import SYSTEMS
from benchmarks.table import cell, table
from tests.support import PROJECT

MARKS = """
import os
from benchmarks.record import mark
for sent in (1, 2, 3): mark(sent)
if os.fork() == 0:
    mark(4)
    os._exit(0)
os.wait()
mark(5)
"""


def test_the_starts_of_several_processes_are_counted_and_put_in_order(tmp_path: Path) -> None:
    before = time.monotonic_ns()
    environment = {DIRECTORY: str(tmp_path), "PYTHONPATH": str(PROJECT)}
    subprocess.run([sys.executable, "-c", MARKS], env=environment, check=True, timeout=30)
    record = Record(str(tmp_path))
    assert record.count() == 5
    starts, sent = zip(*record.marks(), strict=True)
    assert sent == (1, 2, 3, 4, 5)
    assert before < starts[0] < starts[-1] < time.monotonic_ns()
    record.clear()
    assert record.count() == 0


def test_a_process_that_has_just_made_its_file_has_not_started_anything(tmp_path: Path) -> None:
    (tmp_path / "1").touch()
    record = Record(str(tmp_path))
    assert (record.count(), record.marks()) == (0, [])


@pytest.mark.parametrize(
    ("values", "told"),
    [([], "-"), ([1234.5], "1 234"), ([3.0, 1.0, 2.0], "2 (1-3)"), ([0.9812], "0.981"), ([0, 0], "0")],
    ids=str,
)
def test_a_cell_tells_the_median_and_the_spread(values: list[float], told: str) -> None:
    assert cell(values) == told


def test_columns_without_any_figure_are_left_out() -> None:
    rows = [("one", {"a": [1.0]}), ("two", {"b": [2.0]})]
    assert table("x", ["a", "b", "c"], rows).splitlines() == [
        "| x | a | b |",
        "|---|--:|--:|",
        "| one | 1 | - |",
        "| two | - | 2 |",
    ]


def test_what_dtq_is_measured_beside_is_pinned() -> None:
    pinned = (PROJECT / "benchmarks" / "requirements.txt").read_text()
    assert {system.name for system in SYSTEMS} >= {"bare", "dramatiq", "huey", "rq", "celery"}
    lines = [line for line in pinned.splitlines() if line and not line.startswith("#")]
    assert all("==" in line for line in lines)


def test_the_commands_of_performance_md_are_understood() -> None:
    """They take up to an hour; what they would run is tried by each run of CI, small."""
    commands = re.findall(
        r"^make bench *(?:ARGS=(\S+|\".*?\"))? *(?:#.*)?$", (PROJECT / "docs/performance.md").read_text(), re.MULTILINE
    )
    assert len(commands) >= 4
    for options in commands:
        assert arguments(shlex.split(options.strip('"'))).groups
