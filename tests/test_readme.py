"""README.md: every command in it works as it is printed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import PROJECT
from tests.support.servers import free_port
from tests.support.waiting import wait_until

README = (PROJECT / "README.md").read_text()
MARK = "=== end of block"
START = re.compile(r"^(.*(?:make run|dtq up))$", re.MULTILINE)
PORTS = ("8000", "8010")


class Block(NamedTuple):
    language: str
    text: str


def blocks():
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)]


@pytest.fixture
def clone(tmp_path):
    """A directory that looks like a clone with its environment made, but keeps data of its own."""
    directory = tmp_path / "dtq-clone"
    directory.mkdir()
    for entry in PROJECT.iterdir():
        if entry.name not in (".venv", ".dtq", ".env", ".git") and not entry.name.endswith("_cache"):
            (directory / entry.name).symlink_to(entry)
    programs = directory / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "flask").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m flask "$@"\n')
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for name in ("flask", "python"):
        (programs / name).chmod(0o755)
    for name in (".made", ".linked", ".installed", ".installed-dev"):
        (directory / ".venv" / name).touch()
    return directory


@pytest.mark.timeout(180)
@pytest.mark.slow
def test_every_command_works_as_it_is_printed(clone):
    """The blocks in their order, in one shell; ports are changed, what runs on is put into the background."""
    ports = {port: str(free_port()) for port in PORTS}
    script = ["set -eu -o pipefail"]
    for block in blocks():
        if block.language == "sh":
            script.append(START.sub(r"\1 & started", block.text).replace("make test", "make -n test >/dev/null"))
        elif "@task" in block.text:
            script.append(f"cat > mine.py <<'END'\n{block.text}END\n")
        else:
            script.append(f".venv/bin/python - <<'END'\n{block.text}END\n")
        script.append(f"echo; echo '{MARK}'\n")
    text = "\n".join(script)
    for printed, used in ports.items():
        text = text.replace(f"127.0.0.1:{printed}", f"127.0.0.1:{used}").replace(f"_PORT={printed}", f"_PORT={used}")
    await_it = f"PYTHONPATH={PROJECT} {sys.executable} {__file__}"
    text = text.replace("& started", f"& {await_it} $!")
    environment = {**os.environ, "DTQ_API_PORT": ports["8000"], "DTQ_WORKER_METRICS_PORT": "0"}
    environment = {
        name: value for name, value in environment.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))
    }
    with subprocess.Popen(
        ["bash"], cwd=clone, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as shell:  # fmt: skip
        try:
            shell.stdin.write(text)
            shell.stdin.close()
            said = read_blocks(shell, len(blocks()))
        finally:
            stop_stacks(clone, clone.parent / "mine")
        assert shell.wait(30) == 0
    check(said)


def read_blocks(shell, number):
    """Return the output of each block; the stacks hold the pipe open, so it has no end."""
    said, lines = [], []
    while len(said) < number:
        line = shell.stdout.readline()
        assert line, f"after {len(said)} blocks and {''.join(lines)}:\n{shell.stderr.read()}"
        if line.strip() == MARK:
            said.append("".join(lines))
            lines = []
        else:
            lines.append(line)
    return said


def check(said):
    """What the text around the blocks promises."""
    by_text = {block.text: output for block, output in zip(blocks(), said, strict=True)}

    def output_of(part):
        (found,) = (output for text, output in by_text.items() if part in text)
        return found

    first = output_of('"priority": 9}')
    assert '"status":"queued"' in first
    assert '"status":"succeeded"' in first
    assert '"result":{"hello":"world"}' in first
    assert '"status":"cancelled"' in output_of("report-7")
    shown = output_of("dtq demo")
    assert "all 10 went as told" in shown
    assert "all is well" in shown
    assert '"fibonacci": "2880067194370816120"' in shown
    assert output_of("with dtq.Client()") == "succeeded {'hello': 'world'}\n\n"
    assert '"greeting": "hello world"' in output_of("task run greet")
    greeted = output_of('"moon"}')
    assert '"result":{"greeting":"hello moon","attempt":2}' in greeted


def stop_stacks(*directories):
    facts = [path for directory in directories if (path := directory / ".dtq" / "up.json").exists()]
    for path in facts:
        os.kill(json.loads(path.read_text())["pid"], signal.SIGTERM)
    for path in facts:
        wait_until(lambda: not path.exists(), what=f"the end of {path.parent}", timeout_s=30)  # noqa: B023


def test_every_file_that_it_names_is_there():
    named = re.findall(r"`([\w./-]+(?:\.py|\.md|\.example|/))`", README)
    assert len(named) > 10
    missing = [name for name in named if name not in (".dtq/", "mine.py") and not (PROJECT / name).exists()]
    assert missing == []


def test_every_setting_and_command_that_it_names_is_there():
    from dtq.commands.root import COMMANDS
    from dtq.settings import Settings

    names = {name.removeprefix("DTQ_").lower() for name in re.findall(r"DTQ_[A-Z_]+", README)}
    assert names <= set(Settings.model_fields)
    assert set(re.findall(r"flask dtq (\w+)", README)) <= set(COMMANDS)


def wait_for_stack(process):
    """Wait, as the reader does, until what was started in the current directory answers."""

    def answers():
        with contextlib.suppress(OSError, ValueError, KeyError):
            url = json.loads(Path(".dtq/up.json").read_text())["url"]
            with urllib.request.urlopen(f"{url}/ready", timeout=5) as answer:
                return "no worker" not in str(json.loads(answer.read())["warnings"])
        os.kill(process, 0)
        return False

    wait_until(answers, what="the stack", timeout_s=40)


if __name__ == "__main__":
    wait_for_stack(int(sys.argv[1]))
