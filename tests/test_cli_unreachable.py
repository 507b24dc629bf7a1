"""CLI-01 and SEC-01: Redis out of reach is one line and an exit code, soon, and no secret is ever shown."""

from __future__ import annotations

import contextlib
import json
import socket
import time

import pytest

from tests.support.commands import Commands, flask
from tests.support.servers import free_port

ID = "0" * 32
COMMANDS = [
    "submit echo_task",
    f"get {ID}",
    "list",
    f"cancel {ID}",
    "status",
    "demo",
    f"task wait {ID}",
    f"task result {ID}",
    "queue list",
    "queue stats",
    "queue stats mail",
    "queue pause mail",
    "queue resume mail",
    "dlq list",
    f"dlq show {ID}",
    f"dlq requeue {ID}",
    "dlq purge --yes",
    "queue purge mail --yes",
    "audit",
    "bulk list",
    "worker stop w1",
    "worker list",
    "bench --tasks 100",
    "up",
]
SILENT = ["submit echo_task", f"get {ID}", "list", "queue pause mail", "worker list", "up"]
"""One for each first thing that a command asks of Redis: each waits for its time limit."""
SECRETS = ("s3cr/t", "s3cr%2Ft", "opensesame")


@pytest.fixture
def refused():
    return free_port()


@pytest.fixture
def black_hole():
    """A port that answers no SYN: the queue of its listener is full."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.fixture
def wrong_password(server_factory):
    return server_factory(tcp=True, options=("--requirepass", "another")).port


@pytest.mark.parametrize(
    ("trouble", "command"),
    [
        *(("refused", command) for command in COMMANDS),
        *(("wrong_password", command) for command in COMMANDS),
        *(("black_hole", command) for command in SILENT),
    ],
)
def test_cli_01_redis_out_of_reach_is_one_line_within_five_seconds(trouble, command, request):
    port = request.getfixturevalue(trouble)
    commands = Commands(f"redis://user:s3cr%2Ft@127.0.0.1:{port}/0")
    commands.environment |= {"DTQ_API_KEY": "opensesame", "DTQ_API_PORT": "0"}
    for arguments in (command.split(), [*command.split(), "--json"]):
        started = time.monotonic()
        result = commands(*arguments, code=69)
        assert time.monotonic() - started < 5
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert f"127.0.0.1:{port}" in line
        assert "DTQ_REDIS_URL" in line, "what to check"
        assert not any(secret in result.output for secret in SECRETS)
        if trouble == "black_hole":  # twice would only take longer
            break


def test_cli_01_holds_for_the_program_itself(refused, tmp_path):
    environment = {"DTQ_REDIS_URL": f"redis://user:s3cr%2Ft@127.0.0.1:{refused}/0", "DTQ_API_KEY": "opensesame"}
    process = flask("status", environment=environment, cwd=tmp_path)
    output, error = process.communicate(timeout=20)
    assert (process.returncode, output) == (69, "")
    assert len(error.splitlines()) == 1
    assert f"127.0.0.1:{refused}" in error
    assert not any(secret in error for secret in SECRETS)


def test_sec_01_settings_that_cannot_be_used_show_no_secret(tmp_path):
    """The `flask` program finds the commands though the application itself cannot be made."""
    environment = {"DTQ_REDIS_URL": "redis://user:s3cr%2Ft@h:nonsense/0", "DTQ_API_KEY": "open sesame opensesame"}
    for arguments in (("status",), ("config", "check"), ("config", "check", "--json"), ("up",)):
        process = flask(*arguments, environment=environment, cwd=tmp_path)
        output, error = process.communicate(timeout=20)
        assert process.returncode == 78, error
        assert "DTQ_API_KEY" in error
        assert "Traceback" not in error
        assert not any(secret in output + error for secret in SECRETS)
        if "--json" in arguments:
            assert json.loads(output)["ok"] is False
        else:
            assert output == ""


def test_sec_01_a_url_that_cannot_be_read_shows_no_password(tmp_path):
    process = flask("list", environment={"DTQ_REDIS_URL": "redis://user:s3cr%2Ft@h:nonsense/0"}, cwd=tmp_path)
    output, error = process.communicate(timeout=20)
    assert (process.returncode, output, len(error.splitlines())) == (78, "", 1)
    assert "redis://user:***@h:nonsense/0" in error
