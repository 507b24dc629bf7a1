"""What keeps programs running: restarts with growing pauses, output passed on, an orderly end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from dtq.commands import supervise
from dtq.commands.supervise import Program, Supervisor, how

FOREVER = "import time; time.sleep(60)"
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(60)
"""
TWICE = """
import signal, sys, time
count = 0
def stop(number, frame):
    global count
    count += 1
    print("asked", count, flush=True)
    if count > 1:
        sys.exit(3)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(60)
"""


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


class Stack:
    """A supervisor of small programs, stepped by a thread, and what it said."""

    def __init__(self):
        self.said, self.lines = [], []
        self.supervisor = None
        self._stop = threading.Event()
        self._thread = None

    def start(self, **sources):
        programs = [self.program(name, source) for name, source in sources.items()]
        return self.run(programs)

    def program(self, name, source, **options):
        return Program(name=name, command=[sys.executable, "-c", source], environment=dict(os.environ), **options)

    def run(self, programs, **options):
        self.supervisor = Supervisor(
            programs,
            say=lambda name, text: self.said.append(f"{name} {text}"),
            relay=lambda name, line: self.lines.append(f"{name} {line}"),
            **options,
        )
        self._thread = threading.Thread(target=self._step)
        self._thread.start()
        return self

    def _step(self):
        while not self._stop.wait(0.01):
            self.supervisor.step()

    def pid(self, name):
        return next(child.pid for child in self.supervisor.children if child.program.name == name)

    def halt(self):
        """Step no more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def stop(self, *hurry):
        self.halt()
        self.supervisor.stop(*hurry)

    def close(self):
        self.halt()
        if self.supervisor is not None:
            self.supervisor.kill()


@pytest.fixture
def stack():
    made = Stack()
    yield made
    made.close()


def test_what_a_program_writes_is_passed_on_line_by_line(stack, wait_until):
    stack.start(a="import sys; print('one'); sys.stderr.write('two\\n' + 'x' * 70_000 + '\\nlast')")
    wait_until(lambda: "a last" in stack.lines, what="the last line")
    assert stack.lines[:2] == ["a two", f"a {'x' * 65_536}"] or "a one" in stack.lines
    assert {"a one", "a two", "a last"} <= set(stack.lines)


def test_a_program_that_dies_is_started_again_and_that_is_told_in_a_line(stack, wait_until):
    stack.start(a=FOREVER, b=FOREVER)
    first = wait_until(lambda: stack.pid("a"), what="a process")
    other = wait_until(lambda: stack.pid("b"), what="the other one")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: stack.pid("a") not in (None, first), what="another process")
    assert stack.said == ["a was killed by SIGKILL; started again in 0.5 s"]
    assert stack.pid("b") == other


def test_the_pause_doubles_up_to_its_limit_and_begins_anew_after_a_good_while(stack, wait_until, monkeypatch):
    monkeypatch.setattr(supervise, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(supervise, "LONGEST_PAUSE_S", 0.04)
    stack.start(a="import sys; sys.exit(5)")
    wait_until(lambda: len(stack.said) >= 4, what="four ends")
    pauses = [text.rpartition("in ")[2] for text in stack.said[:4]]
    assert pauses == ["0.01 s", "0.02 s", "0.04 s", "0.04 s"]
    assert stack.said[0].startswith("a ended with exit code 5")
    monkeypatch.setattr(supervise, "HEALTHY_S", 0.0)
    seen = len(stack.said)
    wait_until(lambda: stack.said[seen + 1 :], what="another end")
    assert stack.said[-1].endswith("in 0.01 s")


def test_a_program_that_cannot_run_at_all_is_not_tried_again(stack, wait_until):
    stack.run([stack.program("a", "import sys; sys.exit(78)", hopeless=frozenset({78})), stack.program("b", FOREVER)])
    program, code = wait_until(lambda: stack.supervisor.hopeless, what="the verdict")
    assert (program.name, code) == ("a", 78)
    time.sleep(0.1)
    assert stack.said == ["a ended with exit code 78; it cannot be run"]


def test_a_program_that_is_not_there_is_tried_again(stack, wait_until):
    stack.run([Program(name="a", command=["/no/such/program"], environment={})])
    wait_until(lambda: stack.said, what="the failure")
    assert stack.said[0] == "a cannot be started (No such file or directory); tried again in 0.5 s"


def test_they_end_one_after_another(stack, wait_until):
    source = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *a: (time.sleep(0.2), sys.exit(0)))\n"
    source += "print('ready', flush=True)\ntime.sleep(60)"
    stack.start(first=source, second=source)
    wait_until(lambda: len(stack.lines) == 2, what="both")
    pids = [stack.pid("first"), stack.pid("second")]
    second_lived = []
    threading.Timer(0.1, lambda: second_lived.append(alive(pids[1]) and alive(pids[0]))).start()
    started = time.monotonic()
    stack.stop()
    assert 0.4 <= time.monotonic() - started < 3
    assert second_lived == [True]
    assert not any(map(alive, pids))
    assert stack.said == []


def test_one_that_does_not_end_in_its_time_is_killed(stack, wait_until):
    stack.run([stack.program("a", STUBBORN, stop_limit_s=0.2)])
    wait_until(lambda: stack.lines, what="the program")
    pid = stack.pid("a")
    stack.stop()
    assert stack.said == ["a does not end; it is killed"]
    assert not alive(pid)


def test_who_is_in_a_hurry_is_told_so_once_more(stack, wait_until):
    stack.start(a=TWICE)
    wait_until(lambda: stack.lines, what="the program")
    started = time.monotonic()
    stack.stop(lambda: True)
    assert time.monotonic() - started < 3
    assert stack.lines[1:] == ["a asked 1", "a asked 2"]


def test_without_a_hurry_it_is_told_once(stack, wait_until):
    stack.run([stack.program("a", TWICE, stop_limit_s=0.5)])
    wait_until(lambda: stack.lines, what="the program")
    stack.stop()
    assert stack.lines[1:] == ["a asked 1"]


def test_what_a_program_leaves_in_its_group_ends_with_it(stack, wait_until):
    source = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); sys.exit(1)"
    stack.start(a=source)
    line = wait_until(lambda: stack.lines and stack.lines[0], what="the pid")
    wait_until(lambda: not alive(int(line.split()[1])), what="the end of its child")


def test_a_signal_to_our_group_does_not_reach_the_programs(stack, wait_until):
    stack.start(a=FOREVER)
    pid = wait_until(lambda: stack.pid("a"), what="the process")
    assert os.getpgid(pid) == pid != os.getpgid(0)


def test_programs_inherit_what_they_should_and_nothing_else(stack, wait_until):
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    source = f"import os\nfor fd in ({reading}, {writing}):\n"
    source += " try: os.fstat(fd); print(fd, flush=True)\n except OSError: print('no', flush=True)\n"
    source += "import time; time.sleep(60)"
    try:
        stack.run([stack.program("a", source)], pass_fds=[writing])
        wait_until(lambda: len(stack.lines) == 2, what="both lines")
        assert stack.lines == ["a no", f"a {writing}"]
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "ended with exit code 0"), (-11, "was killed by SIGSEGV"), (-64, "was killed by SIGRTMAX"),
     (-99, "was killed by signal 99")],
)  # fmt: skip
def test_an_end_is_told_in_words(code, text):
    assert how(code) == text
