"""The pages of docs/: every block of commands in them is run, or checked by the tool that would run it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from dtq.client import Client
from dtq.commands.root import COMMANDS, dtq
from dtq.redisio import Server
from dtq.settings import Settings
from dtq.states import TERMINAL, Status
from tests.support import PROJECT
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.servers import find_program, free_port
from tests.support.topologies import LEAST_RIGHTS
from tests.support.waiting import wait_until
from tests.support.web_server import running_web
from tests.support.workers import Workers

PAGES = sorted(path.name for path in (PROJECT / "docs").glob("*.md"))


def blocks(page, language="sh"):
    text = (PROJECT / "docs" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def block(page, words, language="sh"):
    (found,) = [text for text in blocks(page, language) if words in text]
    return found


CHECKED = {
    "commands.md": ["dtq completion bash", "worker.py --help"],
    "observability.md": ["curl -s http://127.0.0.1:8000/metrics"],
    "contributing.md": ["make lint"],
    "security.md": ["dtq key create"],
    "message-queue.md": ["dtq mq list", "examples/replica.py"],
    "deployment.md": [
        "docker compose up",
        "systemctl enable",
        "kubectl apply -k",
        "redis-cli -u",
        "redis-server --dir",
    ],
}
"""By page, what each block is known by; each has a test below."""


@pytest.mark.parametrize("page", PAGES)
def test_no_block_of_commands_is_left_out(page):
    known = CHECKED.get(page)
    if known is None:  # then another test runs them, or there are none
        others = [path.read_text() for path in (PROJECT / "tests").glob("test_*.py") if path.name != "test_docs.py"]
        assert not blocks(page) or any(page in text for text in others), f"no test knows of docs/{page}"
        return
    for text in blocks(page):
        assert sum(words in text for words in known) == 1, f"docs/{page}: nothing runs\n{text}"
    assert len(blocks(page)) == len(known)


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{page}" for page in PAGES)])
def test_settings_files_and_commands_that_a_page_names_exist(page):
    text = (PROJECT / page).read_text()
    names = {name.removeprefix("DTQ_").lower() for name in re.findall(r"\bDTQ_[A-Z_]+\b", text)}
    assert names <= set(Settings.model_fields)
    files = re.findall(r"`((?:dtq|docs|tests|deploy|docker|benchmarks|examples)/[\w./@-]+)`", text)
    assert [name for name in files if not (PROJECT / name).exists()] == []
    for words in re.findall(r"flask dtq ([a-z](?:[a-z-]| (?=[a-z]))*)", text):
        name, *rest = words.split()
        assert name in COMMANDS, f"flask dtq {words}"
        command = dtq.get_command(None, name)
        if rest and hasattr(command, "list_commands"):
            assert command.get_command(None, rest[0]) is not None, f"flask dtq {words}"


def shell(script, **environment):
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script], capture_output=True, text=True, timeout=50, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def in_clone(text):
    """A block as it works in this environment, whose programs are not in .venv/bin."""
    flask = f"{sys.executable} -m flask --app {PROJECT / 'app.py'}"
    worker = PROJECT / "worker.py"
    return text.replace(".venv/bin/flask", flask).replace(".venv/bin/python worker.py", f"{sys.executable} {worker}")


def test_commands_of_the_command_line_page():
    shell(in_clone(block("commands.md", "completion bash")) + "\ncomplete -p flask")
    assert "--drain-timeout" in shell(in_clone(block("commands.md", "worker.py --help")))


def test_commands_of_the_observability_page(server, tmp_path):
    port = free_port()
    workers = Workers(server.safe_url, tmp_path)
    worker = workers.spawn(worker_metrics_port=port)
    with running_web(server.safe_url) as web:
        web.submit(b'{"task_type": "echo_task"}')
        with Client(server.safe_url) as client:
            wait_until(lambda: client.queries.counts("default")[Status.SUCCEEDED] == 1, what="the task", timeout_s=20)
        text = block("observability.md", "curl").replace(":8000", f":{web.port}").replace(":8001", f":{port}")
        said = wait_until(lambda: (out := shell(text)).count("\n") > 3 and out, what="the figures")
    assert 'dtq_tasks_succeeded_total{queue="default",task_type="echo_task"} 1.0' in said
    assert "dtq_task_wait_seconds_sum{" in said
    assert worker.stop() == 0
    workers.close()


def test_the_spans_of_the_observability_page_are_written():
    snippet = block("observability.md", "TracerProvider", "python")
    script = snippet + (
        "from dtq import tracing\nfrom tests.support.workers import make_claim\n"
        "tracing.begin_run(make_claim(), None).end(None)\nprovider.shutdown()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )  # fmt: skip
    assert '"name": "process echo"' in done.stdout, done.stderr


def commands_in(text):
    """The `flask dtq` commands of a block, without their remarks, as lists of words."""
    lines = re.findall(r"^\.venv/bin/flask dtq (.*)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_called_as_they_are_after_make(page):
    assert not re.findall(r"^(?:flask|python) .*", "".join(blocks(page)), re.MULTILINE)


def test_commands_of_the_security_page(server, tmp_path):
    text = block("security.md", "key create")
    assert {name for name, _ in re.findall(r"^export (\w+)=(\S+)", text, re.MULTILINE)} == {
        "DTQ_API_KEYS_FILE", "DTQ_PROTECT",
    }  # fmt: skip
    commands = Commands(server.safe_url)
    commands.environment |= {"DTQ_API_KEYS_FILE": str(tmp_path / "keys"), "DTQ_PROTECT": "all"}
    said = [commands(*words).stdout for words in commands_in(text)]
    assert len(said) == 4
    assert "grafana" in said[2]


def test_commands_of_the_message_queue_page(server, tmp_path):
    text = block("message-queue.md", "dtq mq list")
    commands = Commands(server.safe_url)
    with Client(server.safe_url) as client:
        client.queue("commands").put("retry", b"first")
    for words in commands_in(text):
        commands(*words, *(["--yes"] if "purge" in words else []))
    (curl,) = re.findall(r"^curl .*$", text, re.MULTILINE)
    (tmp_path / "job.bin").write_bytes(b"\x00job")
    with running_web(server.safe_url) as web:
        shell(f"cd {tmp_path}; {curl.replace(':8000', f':{web.port}')} --fail")
    with (
        Client(server.safe_url) as client,
        client.queue("commands").subscribe(["retry"]) as subscription,
        subscription.receive(5) as message,
    ):
        assert message.data == b"\x00job"


@pytest.mark.slow
def test_the_replicas_of_the_message_queue_page(server):
    """The message is ready at either of them: a subscription holds one before anybody asks for it."""
    text = block("message-queue.md", "replica.py")
    ports = [str(free_port()) for _ in range(2)]
    start, put, take, done = text.partition("curl")[0], *re.findall(r"^(curl .*?) *(?:#.*)?$", text, re.MULTILINE)
    ready = "curl -s --retry 40 --retry-delay 1 --retry-connrefused -o /dev/null -X POST http://127.0.0.1:{}/"
    either = f"({take} | grep build && {done}) || ({take.replace('9002', '9001')} && {done.replace('9002', '9001')})"
    script = "\n".join(
        ["trap 'kill $(jobs -p)' EXIT", start, ready.format(9001), ready.format(9002), put, either]
    ).replace(".venv/bin/python examples", f"{sys.executable} {PROJECT}/examples")
    for printed, used in zip(("9001", "9002"), ports, strict=True):
        script = script.replace(printed, used)
    said = shell(script, DTQ_REDIS_URL=server.safe_url, PYTHONPATH=str(PROJECT))
    assert '"data": "build"' in said
    assert '"done": true' in said


def test_commands_of_the_contributing_page():
    for line in block("contributing.md", "make lint").splitlines():
        shell(f"cd {PROJECT} && {line.replace('make ', 'make -n ')}")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze")
def test_systemd_accepts_the_units(tmp_path):
    """As they are, but for programs and directories that only a deployment has."""
    assert "deploy/systemd/dtq-worker@.service" in block("deployment.md", "systemctl")
    for unit in (PROJECT / "deploy" / "systemd").iterdir():
        text = unit.read_text()
        start = re.search(r"^ExecStart=/opt/dtq/(\S+) (.*)$", text, re.MULTILINE)
        assert start[1] in (".venv/bin/gunicorn", ".venv/bin/python")
        settings = re.findall(r"\bDTQ_[A-Z_]+", text)
        assert {name.removeprefix("DTQ_").lower() for name in settings} <= set(Settings.model_fields)
        text = text.replace(f"/opt/dtq/{start[1]}", "/bin/true").replace(
            "WorkingDirectory=/opt/dtq", "WorkingDirectory=/"
        )
        (tmp_path / unit.name).write_text(text)
        done = subprocess.run(
            ["systemd-analyze", "verify", str(tmp_path / unit.name)],
            capture_output=True, text=True, timeout=40, check=False,
        )  # fmt: skip
        said = [line for line in done.stderr.splitlines() if unit.name.partition("@")[0] in line]
        assert said == []
        stop_s = int(re.search(r"TimeoutStopSec=(\d+)", text)[1])
        assert stop_s > 25


def test_the_kubernetes_example_is_whole():
    assert "deploy/kubernetes" in block("deployment.md", "kubectl")
    text = (PROJECT / "deploy" / "kubernetes" / "dtq.yaml").read_text()
    assert text.count("enableServiceLinks: false") == text.count("terminationGracePeriodSeconds") == 4
    if shutil.which("kubectl") is None:
        pytest.skip("this machine has no kubectl")
    done = subprocess.run(
        ["kubectl", "kustomize", str(PROJECT / "deploy" / "kubernetes")],
        capture_output=True, text=True, timeout=40, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nkind: ") + done.stdout.startswith("kind: ") == 11


@pytest.mark.slow
def test_a_backup_is_taken_under_load_and_restored_as_the_page_says(server_factory, tmp_path, monkeypatch):
    """Tasks in every state, one of them running: after the restore all of them end, and what had ended is there."""
    if find_program("redis7") is None or shutil.which("redis-cli") is None:
        pytest.skip("this machine has no redis-server 7 with redis-cli")
    monkeypatch.chdir(tmp_path)
    process = server_factory("redis7", tcp=True, aof=True)
    server = Server.connect(process.url)
    engine = Engine(server)
    engine.register("gone", lease_s=1)
    ended = engine.submit(task_type="echo_task")
    engine.commit(engine.claim_one("gone"), worker_id="gone")
    dead = engine.fail_for_good("gone")
    engine.submit(task_type="echo_task")
    engine.claim_one("gone")  # runs when the backup is taken
    waiting = engine.submit_many(50, task_type="echo_task")
    delayed = engine.submit(task_type="echo_task", delay_seconds=1)
    shell(block("deployment.md", "redis-cli -u"), DTQ_REDIS_URL=process.url)
    engine.submit_many(5)  # too late for the backup
    server.close()
    process.kill()

    port = free_port()
    restore = block("deployment.md", "redis-server --dir").replace("redis-server", find_program("redis7"))
    said = shell(restore, NEW_PORT=str(port))
    assert int(said.split()[0]) > 50
    restored = Server.connect(f"redis://127.0.0.1:{port}")
    try:
        wait_until(lambda: b"aof_rewrite_in_progress:0" in restored.call("INFO", "persistence"), what="the file")
        assert list((tmp_path / "restored" / "appendonlydir").iterdir())
        workers = Workers(f"redis://127.0.0.1:{port}", tmp_path)
        worker = workers.spawn(visibility_timeout_s=1)
        with Client(f"redis://127.0.0.1:{port}") as client:

            def all_ended():
                counts = client.queries.counts("default")
                return sum(number for status, number in counts.items() if status in TERMINAL) == 54

            wait_until(all_ended, what="the end of all tasks", timeout_s=30)
            assert client.get(ended).status is Status.SUCCEEDED
            assert client.get(dead).status is Status.DEAD_LETTERED
            assert client.get(delayed).status is client.get(waiting[49]).status is Status.SUCCEEDED
            assert client.queries.counts("default")[Status.SUCCEEDED] == 53
        assert worker.stop() == 0
        workers.close()
    finally:
        shell(f"redis-cli -p {port} SHUTDOWN NOSAVE || true")
        restored.close()


def test_the_rights_that_the_deployment_page_gives_are_those_that_the_tests_run_with():
    (printed,) = re.findall(
        r"^ACL SETUSER dtq on >password (.*?)^```",
        (PROJECT / "docs" / "deployment.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert tuple(printed.split()) == LEAST_RIGHTS


def test_the_capacity_that_the_deployment_page_names_is_what_was_measured():
    """Whoever measures anew and writes the tables is told here what else to write."""
    measured = (PROJECT / "docs" / "performance.md").read_text()
    speed, cost, memory, http = (line.split("|") for line in re.findall(r"^\| dtq \|.*$", measured, re.MULTILINE)[:4])
    (batch,) = (line.split("|") for line in re.findall(r"^\| dtq, a hundred a request \|.*$", measured, re.MULTILINE))
    page = (PROJECT / "docs" / "deployment.md").read_text()
    for named, cell in {
        r"([\d ]+) no-ops a second": speed[2],
        r"(\d+) us of CPU a task": cost[4],
        r"(\d+) of a batch": cost[6],
        r"(\d+) us to run one": cost[7],
        r"(\d+) MiB; \d+ us of CPU a task": memory[2],
        r"([\d ]+) submissions a second": http[2],
        r"(\d+) us of CPU a request": http[7],
        r"(\d+) to take a single": http[8],
        r"(\d+) MiB; \d+ us of CPU a request": http[9],
        r"([\d ]+) tasks in batches": batch[4],
    }.items():
        value = float(cell.partition("(")[0].replace(" ", ""))
        told = float(re.search(named, page)[1].replace(" ", ""))
        assert 0.9 < told / value < 1.1, (named, told, value)
    queued, finished = (float(cell.partition("(")[0].replace(" ", "")) / 1000 for cell in memory[3:5])
    (waiting_from, waiting_to), (ended_from, ended_to) = re.findall(r"(\d\.\d) to (\d\.\d) KB", page)
    assert float(waiting_from) <= queued <= float(waiting_to)
    assert float(ended_from) <= finished <= float(ended_to)
