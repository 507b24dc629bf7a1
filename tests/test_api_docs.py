"""docs/api.md: every command works as it is printed, answers what is shown, and no call of the API is left out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from dtq.model import HandlerPolicy, Outcome
from dtq.redisio import Server
from dtq.states import Disposition
from tests.support import PROJECT
from tests.support.engine import Engine
from tests.support.web import Api, running_api
from tests.support.web_server import running_web

DOCUMENT = (PROJECT / "docs" / "api.md").read_text()
MARK = "=== end of block"
CURL = """curl() { command curl -S -w '%{stderr}status %{http_code}\\n' "$@"; }"""
FREE = {"task_id", "next_since", "next_cursor"}
"""Texts that differ each time."""


class Block(NamedTuple):
    language: str
    text: str


SHELL = "".join(text for language, text in re.findall(r"^```(sh)\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"\bcurl (.*)", SHELL.replace("\\\n", " "))
BLOCKS = [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)]


@pytest.fixture
def worker(server: Server) -> Iterator[Engine]:
    """Runs what waits, as the example handlers would, under a name that is on the list of workers."""
    engine, stop = Engine(server), threading.Event()
    types = ("echo_task", "permanent_fail_task")
    engine.register("docs-1", handlers={name: HandlerPolicy(None, None, None) for name in types})

    def run() -> None:
        while not stop.wait(0.02):
            for claim in engine.claim("docs-1", 5):
                if claim.task_type == "echo_task":
                    done = Outcome(claim=claim, kind="succeed", result=claim.payload)
                else:
                    done = Outcome(claim=claim, kind="dead", reason="permanent", disposition=Disposition.FAILED)
                engine.broker.commit("docs-1", [done])

    thread = threading.Thread(target=run, name="docs-worker")
    thread.start()
    yield engine
    stop.set()
    thread.join(10)


def check(shown: Any, given: Any, where: str) -> None:
    """What is shown is part of what was given: fields and their types, and texts that do not differ each time."""
    if isinstance(shown, dict):
        assert isinstance(given, dict), where
        for name, value in shown.items():
            assert name in given, f"{where}: there is no {name} in {given}"
            check(value, given[name], f"{where}/{name}")
    elif isinstance(shown, list):
        assert isinstance(given, list), where
        assert len(given) >= len(shown), f"{where}: {given}"
        for index, value in enumerate(shown):
            check(value, given[index], f"{where}/{index}")
    elif where.rpartition("/")[2] in FREE:
        assert given is None or isinstance(given, str), where
    elif isinstance(shown, str | bool | None):
        assert given == shown, f"{where}: {given}"
    else:
        assert type(given) is type(shown), f"{where}: {given}"


@pytest.mark.timeout(180)
def test_every_command_works_as_it_is_printed(server: Server, worker: Engine) -> None:
    with running_web(server.safe_url, web_threads=8) as web:
        script = ["set -eu -o pipefail", CURL]
        for block in BLOCKS:
            if block.language == "sh":
                script += [
                    block.text.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{web.port}"),
                    f"echo; echo '{MARK}'",
                ]
        ended = subprocess.run(
            ["bash", "-c", "\n".join(script)], capture_output=True, text=True, timeout=150, check=False
        )
        assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr}"
        statuses = re.findall(r"^status (\d+)$", ended.stderr, re.MULTILINE)
        for command, status in zip(COMMANDS, statuses, strict=True):
            wanted = re.search(r"  # (\d{3})", command)
            assert status == wanted[1] if wanted else status < "400", f"{command}: {status}\n{ended.stdout[-2000:]}"
        outputs = iter(ended.stdout.split(MARK))
        last = ""
        for number, block in enumerate(BLOCKS):
            if block.language == "sh":
                last = next(outputs).strip()
            elif block.language == "json":
                check(json.loads(block.text), json.loads(last.splitlines()[-1]), f"block {number}")
        for block in BLOCKS:
            if block.language == "python":
                environment = {**os.environ, "DTQ": f"http://127.0.0.1:{web.port}", "PYTHONPATH": str(PROJECT)}
                ran = subprocess.run(
                    [sys.executable, "-c", block.text],
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                assert ran.stdout.split() == ["TASK_QUEUED", "TASK_STARTED", "TASK_SUCCEEDED"], ran.stderr


@pytest.fixture
def api() -> Iterator[Api]:
    with running_api("memory://api-docs") as api:
        yield api


def test_no_call_of_the_api_is_left_out(api: Api) -> None:
    called = set()
    router = api.app.url_map.bind("localhost")
    for command in COMMANDS:
        found = re.search(r'"\$DTQ(/[^"?]*)', command)
        assert found, command
        method = re.search(r"-X (\w+)", command)
        verb = method[1] if method else "POST" if " -d " in command else "GET"
        path = found[1].replace("$TASK", "0" * 32).replace("$WORKER", "w1").replace("$BULK", "0" * 32)
        rule, _ = router.match(path, verb, return_rule=True)
        called.add((re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule), verb))
    described = {(path, verb.upper()) for path, verbs in api.document["paths"].items() for verb in verbs}
    assert described - called == set()


def test_every_code_of_an_error_is_listed() -> None:
    import dtq.errors
    import dtq.web.errors

    # What handlers and programs meet, the message queue says, and sockets are closed with.
    elsewhere = (
        "INTERNAL RETRYABLE PERMANENT SNOOZE TASK_TIMEOUT TASK_CANCELLED LEASE_LOST HTTP_ERROR CONFIGURATION "
        "SERVER_ TOPIC MESSAGE SUBSCRIPTION TOO_MANY_WEBSOCKETS"
    )
    kinds = [kind for module in (dtq.errors, dtq.web.errors) for kind in vars(module).values() if hasattr(kind, "code")]
    codes = {kind.code for kind in kinds if not kind.code.startswith(tuple(elsewhere.split()))}
    assert len(codes) > 20
    assert {code for code in codes if f"`{code}`" not in DOCUMENT} == set()
