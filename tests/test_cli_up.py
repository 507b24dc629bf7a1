"""`flask dtq up` for real: everything starts, survives deaths, stops in order, and finds its data again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
import venv
from pathlib import Path

import pytest

from dtq.commands.banner import curl_lines, has_examples
from dtq.commands.stack import usable_port
from dtq.errors import ConfigurationError
from dtq.settings import load_settings
from tests.support import PROJECT
from tests.support.commands import flask
from tests.support.servers import free_port

READY_LIMIT_S = 30.0


class Stack:
    """One `flask dtq up` in the current directory, with a process group of its own as a terminal gives it."""

    def __init__(self, *arguments, **environment):
        self.port = int(environment.pop("DTQ_API_PORT", 0) or free_port())
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = open("up.log", "a+b")  # noqa: SIM115 - as long as the stack
        self.environment = {"DTQ_API_PORT": str(self.port), "DTQ_WORKER_METRICS_PORT": "0", **environment}
        self.process = flask("up", *arguments, environment=self.environment, stderr=self._log, start_new_session=True)
        self.facts = {}

    @property
    def log(self):
        return Path("up.log").read_text()

    def ready(self):
        """Wait for the document of `--json`."""
        line = self.process.stdout.readline()
        assert line, f"up ended:\n{self.log}"
        self.facts = json.loads(line)
        return self

    def pids(self):
        return json.loads(Path(".dtq/up.json").read_text())["pids"]

    def call(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=35) as answer:
            return json.loads(answer.read())

    def run_task(self, task_type="echo_task", **fields):
        task_id = self.call("/api/v1/tasks", {"task_type": task_type, **fields})["task_id"]
        return self.call(f"/api/v1/tasks/{task_id}?wait=20")

    def interrupt(self):
        """What Ctrl-C in a terminal does: SIGINT to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, limit_s=30):
        """Wait for the end; returns the exit code."""
        self.process.stdout.read()
        return self.process.wait(limit_s)

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(Exception):
                self.process.wait(20)
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        self._log.close()


@pytest.fixture
def up():
    made = []

    def start(*arguments, **environment):
        made.append(Stack(*arguments, **environment))
        return made[-1]

    yield start
    for one in made:
        one.close()


def processes_of(directory):
    """The processes whose current directory is this one or below it: all of a stack's, and no others."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            where = Path(os.readlink(entry / "cwd"))
            if entry.name.isdigit() and entry.name != str(os.getpid()) and where.is_relative_to(directory):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return {pid: command for pid, command in found.items() if command}  # a zombie has none


def assert_nothing_is_left():
    here = Path.cwd().resolve()
    assert processes_of(here) == {}
    for lock in (here / ".dtq").glob("*.lock"):
        with open(lock, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not (here / ".dtq" / "redis.sock").exists()
    assert not (here / ".dtq" / "up.json").exists()


@pytest.mark.slow
def test_everything_works_survives_kills_stops_and_finds_its_data_again(up, wait_until):
    stack = up("--json").ready()
    assert stack.facts["url"] == stack.url
    assert "embedded" in stack.facts["redis"]
    assert len(stack.facts["workers"]) == 1
    done = stack.run_task(payload={"hello": "world"}, priority=9)
    assert (done["status"], done["result"]) == ("succeeded", {"hello": "world"})

    for name in ("worker", "web"):
        first = stack.pids()[name]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: stack.pids()[name] not in (None, first), what=f"another {name}", timeout_s=10)  # noqa: B023
        assert f"{name:<6} | was killed by SIGKILL; started again in 0.5 s" in stack.log
    wait_until(lambda: answers(stack), what="the web server", timeout_s=10)
    assert stack.run_task()["status"] == "succeeded"

    stack.interrupt()
    assert stack.end() == 0
    assert_nothing_is_left()
    assert "Traceback" not in stack.log

    again = up("--json", DTQ_API_PORT=stack.port).ready()
    assert again.call(f"/api/v1/tasks/{done['task_id']}")["result"] == {"hello": "world"}
    assert again.run_task()["status"] == "succeeded"
    again.process.send_signal(signal.SIGTERM)
    assert again.end() == 0
    assert_nothing_is_left()


def answers(stack):
    with contextlib.suppress(OSError):
        return stack.call("/health")
    return None


@pytest.mark.slow
def test_a_second_one_in_the_directory_says_where_the_first_is_and_does_it_no_harm(up):
    stack = up("--json").ready()
    output, error = flask("up", environment={"DTQ_API_PORT": str(free_port())}).communicate(timeout=20)
    assert output == ""
    assert error == (
        f"Error: dtq is already running in {Path.cwd().resolve()} (pid {stack.process.pid}, {stack.url}); "
        "stop it with Ctrl-C there, or set DTQ_DIRECTORY and DTQ_API_PORT to run a second one\n"
    )
    assert stack.run_task()["status"] == "succeeded"
    stack.interrupt()
    assert stack.end() == 0


def test_the_port_that_is_named_instead_of_one_in_use_is_free():
    with contextlib.ExitStack() as taken:
        for port in range(20_000, 30_000, 37):
            with contextlib.suppress(OSError), contextlib.ExitStack() as pair:
                for one in (port, port + 10):
                    pair.enter_context(socket.socket()).bind(("127.0.0.1", one))
                taken.enter_context(pair.pop_all())
                break
        with pytest.raises(ConfigurationError) as told:
            usable_port(load_settings(env_file=None, api_host="127.0.0.1", api_port=port))
        named = int(told.value.message.rpartition("DTQ_API_PORT=")[2])
        assert named != port + 10
        assert usable_port(load_settings(env_file=None, api_host="127.0.0.1", api_port=named)) == named


def test_a_port_that_is_in_use_is_told_before_anything_is_started(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        process = flask("up", environment={"DTQ_API_PORT": str(port)})
        output, error = process.communicate(timeout=20)
    assert (process.returncode, output) == (78, "")
    assert error.startswith(f"Error: port {port} is in use by another program")
    assert len(error.splitlines()) == 1
    assert not Path(".dtq").exists()


def test_a_host_that_is_none_of_this_machine_is_told():
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(ConfigurationError, match="DTQ_API_HOST"):
            usable_port(load_settings(env_file=None, api_host=host))


@pytest.mark.slow
def test_a_running_task_gets_its_time_and_a_second_interrupt_hurries(up, wait_until):
    stack = up("--json").ready()
    task_id = stack.call("/api/v1/tasks", {"task_type": "sleep_task", "payload": {"seconds": 1.5}})["task_id"]
    wait_until(lambda: stack.call(f"/api/v1/tasks/{task_id}")["status"] == "running", what="the start")
    stack.interrupt()
    assert stack.end() == 0
    assert_nothing_is_left()

    stack = up("--json").ready()
    assert stack.call(f"/api/v1/tasks/{task_id}")["status"] == "succeeded"
    task_id = stack.call("/api/v1/tasks", {"task_type": "slow_task", "payload": {"seconds": 50}})["task_id"]
    wait_until(lambda: stack.call(f"/api/v1/tasks/{task_id}")["status"] == "running", what="the start")
    stack.interrupt()
    wait_until(lambda: "draining" in stack.log.rpartition("slots")[2], what="the drain", timeout_s=15)
    started = time.monotonic()
    stack.interrupt()
    assert stack.end() == 0
    assert time.monotonic() - started < 12
    assert_nothing_is_left()

    stack = up("--json").ready()
    task = stack.call(f"/api/v1/tasks/{task_id}")
    assert task["status"] in ("queued", "running")
    assert task["failures"] == task["crashes"] == 0
    stack.call(f"/api/v1/tasks/{task_id}/cancel", {})
    stack.interrupt()
    assert stack.end() == 0


@pytest.mark.parametrize("sign", [".dtq/up.lock", ".dtq/start.lock", ".dtq/redis.sock", ".dtq/up.json"])
def test_an_interrupt_while_it_starts_leaves_nothing_either(up, wait_until, sign):
    stack = up()
    wait_until(Path(sign).exists, what=sign, timeout_s=20)
    stack.interrupt()
    assert stack.end() == 0
    assert "up     | stopped" in stack.log
    assert_nothing_is_left()


@pytest.mark.slow
def test_after_a_kill_of_up_itself_the_next_one_works(up, wait_until):
    stack = up("--json").ready()
    done = stack.run_task()
    stack.process.kill()
    stack.process.wait()
    again = up("--json", DTQ_API_PORT=stack.port).ready()
    assert again.call(f"/api/v1/tasks/{done['task_id']}")["status"] == "succeeded"
    assert again.run_task()["status"] == "succeeded"
    again.interrupt()
    assert again.end() == 0
    assert_nothing_is_left()


@pytest.mark.slow
def test_after_a_kill_of_up_nothing_goes_on_for_long(up, wait_until):
    stack = up("--json", DTQ_WORKER_PROCESSES="2").ready()
    stack.process.kill()
    stack.process.wait()
    wait_until(lambda: processes_of(Path.cwd().resolve()) == {}, what="the end of all", timeout_s=20)


@pytest.mark.slow
def test_a_redis_that_is_killed_is_started_again(up, wait_until):
    stack = up("--json").ready()
    (server,) = (pid for pid, command in processes_of(Path.cwd().resolve()).items() if "redis.sock" in command)
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: "| was gone; started again" in stack.log or ready(stack), what="a server", timeout_s=15)
    wait_until(lambda: ready(stack), what="the stack", timeout_s=15)
    assert stack.run_task()["status"] == "succeeded"
    stack.interrupt()
    assert stack.end() == 0
    assert_nothing_is_left()


def ready(stack):
    with contextlib.suppress(OSError):
        return stack.call("/ready")
    return None


@pytest.mark.slow
def test_handlers_of_the_directory_are_used_though_dtq_is_elsewhere(up):
    Path("mine.py").write_text(
        "from dtq import task\n@task('greet')\ndef greet(payload, ctx):\n print('in the handler')\n return 'hello'\n"
    )
    Path("app.py").write_text("raise SystemExit('this is another application')\n")
    Path(".env").write_text(f"DTQ_TASKS=mine\nDTQ_API_PORT={free_port()}\n")
    stack = up("--json", DTQ_API_PORT="0", DTQ_QUEUES="mail")
    stack.ready()
    stack.url = stack.facts["url"]
    assert stack.facts["task_types"] == ["greet"]
    assert stack.run_task("greet", queue="mail")["result"] == "hello"
    assert "has no handler" not in stack.log
    stack.interrupt()
    assert stack.end() == 0
    assert "worker | in the handler" in stack.log


@pytest.mark.slow
def test_a_module_without_any_handler_is_warned_about(up, wait_until):
    Path("mine.py").write_text("from dtq import task\n")
    stack = up("--json", DTQ_TASKS="mine").ready()
    wait_until(lambda: "warning: DTQ_TASKS=mine has no handler" in stack.log, what="the warning")
    stack.interrupt()
    assert stack.end() == 0


def test_the_first_words_offer_nothing_that_would_fail():
    """Without the examples there is no payload that is known to be right."""
    url, own = "http://here", {"env_file": None, "tasks": "mine"}
    lines = curl_lines(url, ["greet"], load_settings(**own))
    assert [line.startswith("#") for line in lines] == [True, True, False]
    assert '"task_type": "greet", "payload": {}' in lines[1]
    assert len(curl_lines(url, [], load_settings(**own))) == 1
    for mine, examples in (("mine", False), ("mine, examples.tasks", True)):
        assert has_examples(load_settings(env_file=None, tasks=mine)) is examples
    assert '"echo_task"' in curl_lines(url, [], load_settings(env_file=None))[0]


@pytest.mark.slow
def test_handlers_that_cannot_be_loaded_end_it_with_78(up):
    stack = up(DTQ_TASKS="no_such_module")
    assert stack.end() == 78
    assert "there is no module 'no_such_module'" in stack.log
    assert "the worker cannot run" in stack.log.splitlines()[-1]
    assert_nothing_is_left()


@pytest.mark.slow
def test_sec_01_a_redis_elsewhere_is_used_and_left_alone_and_its_password_never_shown(up, server_factory):
    server = server_factory(tcp=True, options=("--requirepass", "s3cr/t"))
    where = f"127.0.0.1:{server.port}/0"
    stack = up("--json", DTQ_REDIS_URL=f"redis://:s3cr%2Ft@{where}").ready()
    assert stack.facts["redis"] == f"redis://:***@{where}"
    assert stack.run_task()["status"] == "succeeded"
    stack.interrupt()
    assert stack.end() == 0
    assert server.ping()
    assert not Path(".dtq/redis.log").exists()
    assert where in stack.log
    assert not any(secret in stack.log for secret in ("s3cr/t", "s3cr%2Ft"))


@pytest.mark.slow
def test_the_first_words_tell_where_to_look_and_commands_that_work(up, wait_until):
    """The curl lines are run as they are printed."""
    stack = up()
    said = []
    while not said or "Ctrl-C" not in said[-1]:
        line = stack.process.stdout.readline()
        assert line, stack.log
        said.append(line)
    text = "".join(said)
    for part in (f"{stack.url}/", "worker", "embedded", f"pid {stack.process.pid}", " dtq demo"):
        assert part in text
    submit, look = (line.strip() for line in said if line.strip().startswith("curl"))
    answer = subprocess.run(submit, shell=True, capture_output=True, text=True, timeout=20, check=True)
    task_id = json.loads(answer.stdout)["task_id"]
    wait_until(lambda: stack.call(f"/api/v1/tasks/{task_id}")["status"] == "succeeded", what="success")
    answer = subprocess.run(look, shell=True, capture_output=True, text=True, timeout=20, check=True)
    assert json.loads(answer.stdout)["tasks"][0]["task_id"] == task_id
    (demo,) = (line.strip() for line in said if line.rstrip().endswith("dtq demo"))
    demo = demo.replace(" dtq demo", " dtq status --json")  # the same program, sooner
    environment = {**os.environ, **stack.environment}
    answer = subprocess.run(demo, shell=True, capture_output=True, text=True, timeout=20, check=True, env=environment)
    assert json.loads(answer.stdout)["verdict"] == "ok"
    stack.interrupt()
    assert stack.end() == 0


@pytest.mark.slow
def test_log_lines_stay_json_where_that_is_wanted(up):
    stack = up("--json", DTQ_LOG_JSON="true").ready()
    stack.interrupt()
    assert stack.end() == 0
    lines = [json.loads(line) for line in stack.log.splitlines()]
    assert any(line.get("program") == "up" for line in lines)


def test_make_run_is_this_command():
    recipe = (PROJECT / "Makefile").read_text()
    assert "flask dtq up" in recipe


def test_make_lets_scripts_elsewhere_import_the_project(tmp_path):
    checkout = tmp_path / "check out"
    shutil.copytree(PROJECT / "dtq", checkout / "dtq", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "Makefile", checkout)
    venv.create(checkout / ".venv", with_pip=False)
    (checkout / ".venv" / ".made").touch()
    subprocess.run(["make", ".venv/.linked"], cwd=checkout, check=True, timeout=20)
    script = "import importlib.util as u; print(u.find_spec('dtq').origin)"
    python = checkout / ".venv" / "bin" / "python"
    said = subprocess.run([python, "-P", "-c", script], capture_output=True, text=True, timeout=20, check=True).stdout
    assert Path(said.strip()).samefile(checkout / "dtq" / "__init__.py")
