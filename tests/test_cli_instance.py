"""At most one `up` in a directory, whatever became of the one before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dtq.commands import instance as instance_module
from dtq.commands.instance import AlreadyRunning, Instance
from dtq.commands.leash import LOOK_INTERVAL_S
from dtq.errors import ConfigurationError
from tests.support import PROJECT

LEASH = PROJECT / "dtq" / "commands" / "leash.py"


def test_a_second_one_is_told_about_the_first(tmp_path):
    first, second = Instance(tmp_path), Instance(tmp_path)
    first.take()
    with pytest.raises(AlreadyRunning) as caught:
        second.take()
    assert caught.value.context["facts"] == {}
    first.describe({"pid": 7, "url": "http://here"})
    with pytest.raises(AlreadyRunning) as caught:
        second.take()
    assert caught.value.context["facts"] == {"pid": 7, "url": "http://here"}
    first.release()
    first.release()
    second.take()
    assert second.facts() == {}
    second.release()


def test_other_directories_are_others(tmp_path):
    first, second = Instance(tmp_path / "a"), Instance(tmp_path / "b")
    first.take()
    second.take()
    assert (tmp_path / "b" / ".dtq").stat().st_mode & 0o777 == 0o700
    first.release()
    second.release()


def test_one_that_is_killed_frees_its_place_but_not_that_of_its_children(tmp_path, wait_until):
    source = f"""
import subprocess, sys, time
sys.path.insert(0, {str(PROJECT)!r})
from pathlib import Path
from dtq.commands.instance import Instance
one = Instance(Path({str(tmp_path)!r}))
one.take()
assert one.take_children()
child = subprocess.Popen(["sleep", "60"], pass_fds=[one.children_fd])
one.describe({{"pids": {{"worker": child.pid}}}})
print(child.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as process:
        orphan = int(process.stdout.readline())
        with pytest.raises(AlreadyRunning):
            Instance(tmp_path).take()
        process.kill()
    try:
        instance = Instance(tmp_path)
        instance.take()
        assert instance.facts() == {"pids": {"worker": orphan}}
        assert not instance.take_children()
    finally:
        os.kill(orphan, signal.SIGKILL)
    wait_until(instance.take_children, what="the end of the orphan")
    instance.release()


def test_a_directory_that_cannot_be_used_is_told_plainly(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="DTQ_DIRECTORY"):
        Instance(tmp_path / "file").take()


def test_a_directory_made_for_nothing_is_removed_and_no_other(tmp_path):
    made = tmp_path / ".dtq"
    for names in ((), ("data",)):
        instance = Instance(tmp_path)
        instance.take()
        assert instance.take_children()
        for name in names:
            (made / name).touch()
        instance.release()
        assert made.exists() == bool(names)
    (made / "data").unlink()
    instance = Instance(tmp_path)
    instance.take()
    assert instance.take_children()
    instance.release()
    assert made.exists()  # it was there before


def test_a_lock_on_a_file_that_was_removed_meanwhile_counts_for_nothing(tmp_path, monkeypatch):
    first = Instance(tmp_path)
    lock = instance_module._lock
    removals = [tmp_path / ".dtq" / "up.lock"]

    def lock_late(file):
        if removals:
            removals.pop().unlink()
        return lock(file)

    monkeypatch.setattr(instance_module, "_lock", lock_late)
    first.take()
    with pytest.raises(AlreadyRunning):
        Instance(tmp_path).take()
    first.release()


# --- the leash --------------------------------------------------------------------------------------------------------


def run_leashed(parent, *command):
    return subprocess.Popen(
        [sys.executable, "-P", str(LEASH), str(parent), *command], stdout=subprocess.PIPE, text=True
    )


def test_a_leashed_program_runs_as_by_itself(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("import sys, dtq\nprint(sys.argv, __name__, dtq.__file__)\nsys.exit(7)\n")
    (Path.cwd() / "signal.py").write_text("raise SystemExit('this is not the module of the library')")
    with run_leashed(os.getpid(), str(script), "a", "--b") as process:
        said = process.stdout.read()
    assert process.returncode == 7
    assert said == f"{[str(script), 'a', '--b']} __main__ {PROJECT / 'dtq' / '__init__.py'}\n"
    with run_leashed(os.getpid(), "json.tool", "--help") as process:
        assert "usage" in process.stdout.read().lower()


def test_a_program_that_takes_its_time_to_end_is_not_killed_by_its_leash(tmp_path):
    script = tmp_path / "script.py"
    told = "lambda: print(signal.getitimer(signal.ITIMER_REAL), flush=True)"
    script.write_text(f"import atexit, signal, sys\natexit.register({told})\nsys.exit(0)\n")
    with run_leashed(os.getpid(), str(script)) as process:
        assert process.stdout.read() == "(0.0, 0.0)\n"
    assert process.returncode == 0


def test_a_leashed_program_is_asked_to_end_when_its_parent_is_gone(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *a: (print('asked', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    source = f"""
import os, subprocess, sys
p = subprocess.Popen([sys.executable, "-P", {str(LEASH)!r}, str(os.getpid()), {str(script)!r}])
sys.stdin.read()
os.kill(os.getpid(), 9)
"""
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout.readline() == "ready\n"
        time.sleep(LOOK_INTERVAL_S * 1.5)  # looks that find the parent there
        started = time.monotonic()
        parent.stdin.close()
        assert parent.stdout.read() == "asked\n"
        assert time.monotonic() - started < LOOK_INTERVAL_S * 4 + 2
