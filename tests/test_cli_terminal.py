"""The commands on a real terminal: colours, widths, Ctrl-C and Ctrl-Z."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.support import PROJECT
from tests.support.engine import Engine
from tests.support.waiting import wait_until


class Terminal:
    """`flask dtq ...` on a terminal of so many columns."""

    def __init__(self, url, *arguments, columns=80, **environment):
        self._screen, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flask", "--app", str(PROJECT / "app.py"), "dtq", *arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**os.environ, "DTQ_REDIS_URL": url, "TERM": "xterm", **environment},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - there are no threads here
        )  # fmt: skip
        os.close(theirs)
        os.set_blocking(self._screen, False)
        self.text = ""

    def read(self):
        """All that was written so far."""
        with contextlib.suppress(OSError):  # nothing new, or the other side is closed
            while data := os.read(self._screen, 65536):
                self.text += data.decode()
        return self.text

    def wait_for(self, words):
        wait_until(lambda: words in self.read(), what=f"{words!r} on the terminal", timeout_s=20)

    def type(self, keys):
        os.write(self._screen, keys)

    def end(self, limit_s=20):
        code = self.process.wait(limit_s)
        self.read()
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._screen)


@pytest.fixture
def terminal(server):
    made = []

    def run(*arguments, **options):
        made.append(Terminal(server.safe_url, *arguments, **options))
        return made[-1]

    yield run
    for one in made:
        one.close()


def test_colours_are_for_terminals_and_end_with_no_color(server, terminal):
    coloured = terminal("status")
    assert coloured.end() == 1
    assert "\x1b[31m" in coloured.text
    assert "needs attention" in coloured.text
    plain = terminal("status", NO_COLOR="1")
    assert plain.end() == 1
    assert "\x1b[3" not in plain.text


@pytest.mark.parametrize("columns", [60, 120])
def test_tables_fit_the_terminal_and_times_are_relative(server, terminal, columns):
    Engine(server).submit_many(3, task_type="a_task_type_with_a_rather_long_name_that_needs_room")
    shown = terminal("list", columns=columns, NO_COLOR="1")
    assert shown.end() == 0
    lines = shown.text.replace("\r", "").splitlines()
    assert len(lines) == 4
    assert all(len(line) <= columns for line in lines)
    assert ("ago" in lines[1]) == (columns == 120)


def test_ctrl_c_ends_a_watch_well(server, terminal):
    watched = terminal("queue", "list", "--watch=0.2")
    watched.wait_for("no queues")
    Engine(server).submit(queue="mail")
    watched.wait_for("mail")
    assert "\x1b[H\x1b[2J" in watched.text
    watched.type(b"\x03")
    assert watched.end() == 0
    assert "Traceback" not in watched.text


def test_ctrl_z_suspends_what_up_runs_and_fg_lets_it_go_on(terminal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stack = terminal("up", DTQ_REDIS_URL="", DTQ_API_PORT="0", DTQ_WORKER_METRICS_PORT="0", columns=200)
    stack.wait_for("Ctrl-C stops everything")
    children = [int(pid) for pid in _children(stack.process.pid)]
    assert len(children) >= 2
    stack.type(b"\x1a")
    wait_until(lambda: all(_state(pid) == "T" for pid in [stack.process.pid, *children]), what="all to stand still")
    os.kill(stack.process.pid, signal.SIGCONT)  # what fg does
    stack.wait_for("goes on")
    wait_until(lambda: all(_state(pid) in "SRD" for pid in children), what="all to go on")
    stack.type(b"\x03")
    assert stack.end(40) == 0


def _children(pid):
    return (Path("/proc") / str(pid) / "task" / str(pid) / "children").read_text().split()


def _state(pid):
    return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
