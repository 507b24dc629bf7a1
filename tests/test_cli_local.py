"""`flask dtq task run` and `flask dtq worker run`: handlers tried out, and a worker, from the command line."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from dtq import registry
from tests.support.commands import Commands, flask


@pytest.fixture
def commands(monkeypatch):
    before = dict(registry.default._handlers)
    path = list(sys.path)
    yield Commands("memory://")
    registry.default._handlers.clear()
    registry.default._handlers.update(before)
    sys.path[:] = path


@pytest.fixture
def module():
    """Write a module of handlers into the current directory; returns its name."""

    def write(source, name):
        Path(f"{name}.py").write_text(f"import dtq\nfrom dtq import task, RetryableError\n{source}\n")
        return name

    return write


def test_a_handler_is_run_in_this_process_and_its_result_is_printed(commands):
    assert commands("task", "run", "echo_task", '{"said": "hällo"}').stdout == '{"said": "hällo"}\n'
    told = commands.json("task", "run", "fibonacci_task", '{"n": 90}')
    assert told["result"] == {"n": 90, "fibonacci": "2880067194370816120"}
    assert (told["status"], told["error"]) == ("succeeded", None)


def test_a_handler_of_the_current_directory_is_found(commands, module):
    module("@task('own')\ndef own(payload, ctx): return [ctx.task_type, ctx.attempt, payload, ctx.queue]", "o1")
    assert json.loads(commands("task", "run", "own", '{"a": 1}', "--tasks", "o1").stdout) == [
        "own",
        1,
        {"a": 1},
        "default",
    ]


def test_a_handler_that_needs_no_redis_starts_none(commands):
    commands.environment = {}
    commands("task", "run", "echo_task")
    assert not Path(".dtq").exists()


def test_a_handler_may_use_what_needs_redis(commands, module):
    source = "@task('sub')\ndef sub(payload, ctx):\n ctx.progress(0.5, 'half')\n ctx.log.info('said')\n"
    source += " return dtq.idempotent_operation('k', 60, lambda: sub.submit({}).status)"
    module(source, "o2")
    assert commands("task", "run", "sub", "--tasks", "o2").stdout == '"queued"\n'


def test_what_a_handler_raises_is_one_line_and_1(commands, module):
    module("@task('bad')\ndef bad(payload, ctx): raise ValueError('no\\nluck')", "o3")
    result = commands("task", "run", "bad", "--tasks", "o3", code=1)
    assert result.stdout == ""
    assert result.stderr == "Error: bad: ValueError: no\\nluck\n"
    assert "line 4, in bad" in commands("task", "run", "bad", "--tasks", "o3", "--traceback", code=1).stderr
    told = commands.json("task", "run", "bad", "--tasks", "o3", code=1)
    assert (told["status"], told["error"], told["result"]) == ("failed", "ValueError: no\\nluck", None)


def test_a_result_that_is_not_json_is_a_failure(commands, module):
    module("@task('odd')\ndef odd(payload, ctx): return {1, 2}", "o4")
    assert "TypeError" in commands("task", "run", "odd", "--tasks", "o4", code=1).stderr


def test_an_unknown_handler_ends_with_3_and_a_missing_module_with_78(commands):
    error = commands("task", "run", "no_such_task", code=3).stderr
    assert "known are" in error
    assert "DTQ_TASKS names the modules" in error
    assert "no_such_module" in commands("task", "run", "echo_task", "--tasks", "no_such_module", code=78).stderr


def test_a_module_whose_name_is_nearly_right_is_named(commands, module):
    module("@task('near')\ndef near(payload, ctx): return {}", "nearby")
    assert "did you mean nearby?" in commands("task", "run", "near", "--tasks", "naerby", code=78).stderr


def test_a_payload_that_the_schema_refuses_ends_with_2(commands):
    assert "PAYLOAD/n" in commands("task", "run", "fibonacci_task", '{"n": -1}', code=2).stderr
    assert "JSON object" in commands("task", "run", "echo_task", "[]", code=2).stderr


def test_worker_run_becomes_a_worker_with_its_options(server, tmp_path, wait_until):
    environment = {"DTQ_REDIS_URL": server.safe_url, "DTQ_WORKER_METRICS_PORT": "0"}
    process = flask("worker", "run", "--name", "from-cli", "--concurrency", "2", environment=environment, cwd=tmp_path)
    try:
        assert "worker from-cli: queues default, 2 slots" in process.stderr.readline()
        with open(f"/proc/{process.pid}/cmdline") as line:
            assert "worker.py" in line.read()
        commands = Commands(server.safe_url)
        wait_until(lambda: commands.json("worker", "list")["workers"], what="the worker")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_worker_run_help_is_that_of_the_worker(tmp_path):
    output, _ = flask("worker", "run", "--help", cwd=tmp_path).communicate(timeout=50)
    assert "--drain-timeout" in output
