"""`flask dtq` on a running Redis: what each command does, says and returns."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import threading

import pytest

from dtq.client import Client
from dtq.commands import demo as demo_command
from dtq.commands.status import needs_attention, worth_a_note
from dtq.settings import load_settings
from dtq.worker.launch import Options, run_worker
from tests.support import PROJECT
from tests.support.commands import Commands, flask
from tests.support.engine import Engine

NO_ID = "0" * 32


@pytest.fixture
def commands(server):
    return Commands(server.safe_url)


@pytest.fixture
def client(server):
    with Client(settings=load_settings(env_file=None, redis_url=server.safe_url)) as made:
        yield made


@pytest.fixture
def worker(commands, wait_until, client):
    """A worker with the example tasks, in a thread."""
    url = commands.environment["DTQ_REDIS_URL"]
    settings = load_settings(env_file=None, redis_url=url, worker_metrics_port=0, worker_id="w1", retry_base_delay=0.01)
    options = Options(max_tasks=1_000)
    thread = threading.Thread(target=run_worker, args=(settings, options), daemon=True)
    thread.start()
    wait_until(client.queries.workers, what="the worker")
    yield
    client.broker.server.call("HSET", client.broker.keys.worker("w1"), "command", "stop")
    wait_until(lambda: not thread.is_alive(), what="the end of the worker", timeout_s=15)


# --- submitting -------------------------------------------------------------------------------------------------------


def test_submit_prints_the_id_and_its_state(commands, client):
    result = commands("submit", "echo_task", '{"a": 9007199254740993}', "--priority", "9", "--queue", "mail")
    task_id, status = result.stdout.split()
    assert status == "queued"
    assert "no live worker" in result.stderr
    task = client.get(task_id)
    assert (task.payload, task.priority, task.queue) == ({"a": 9007199254740993}, 9, "mail")


def test_submit_takes_every_option_and_task_submit_is_the_same(commands):
    task = commands.json(
        "task", "submit", "echo_task", "--payload", '{"a": 1}', "--max-attempts", "3", "--timeout-ms", "500",
        "--delay", "60.5", "--idempotency-key", "k", "--metadata", '{"ttl_seconds": 90}', "--tag", "x", "--tag", "y",
    )  # fmt: skip
    wanted = {"status": "pending", "payload": {"a": 1}, "max_attempts": 3, "timeout_ms": 500, "idempotency_key": "k",
              "metadata": {"ttl_seconds": 90}, "tags": ["x", "y"]}  # fmt: skip
    assert {name: task[name] for name in wanted} == wanted
    again = commands("submit", "echo_task", "--payload", '{"a": 1}', "--max-attempts", "3", "--timeout-ms", "500",
                     "--delay", "60.5", "--idempotency-key", "k", "--metadata", '{"ttl_seconds": 90}', "--tag", "x",
                     "--tag", "y")  # fmt: skip
    assert again.stdout.split()[:2] == [task["task_id"], "pending"]
    assert "was submitted before" in again.stdout


def test_submit_takes_a_time_with_an_offset(commands):
    task = commands.json("submit", "echo_task", "--run-at", "2099-01-01T12:00:00+02:00")
    assert task["available_at"] == "2099-01-01T10:00:00.000Z"
    assert "offset" in commands("submit", "echo_task", "--run-at", "2099-01-01T12:00:00", code=2).stderr


def test_the_payload_comes_from_a_file_or_stdin(commands, tmp_path):
    file = tmp_path / "payload.json"
    file.write_text('{"from": "file"}')
    assert commands.json("submit", "echo_task", f"@{file}")["payload"] == {"from": "file"}
    assert commands.json("submit", "echo_task", "-", input='{"from": "stdin"}')["payload"] == {"from": "stdin"}
    assert "cannot be read" in commands("submit", "echo_task", "@missing.json", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["echo_task", "{"], "PAYLOAD: not JSON"),
        (["echo_task", '{"a": 1, "a": 2}'], "a"),
        (["echo_task", "[]"], "payload"),
        (["echo_task", "{}", "--priority", "10"], "priority"),
        (["echo_task", "{}", "--priority", "x"], "priority"),
        (["echo_task", "{}", "--queue", "Not A Queue"], "queue"),
        (["no type"], "task_type"),
        (["echo_task", "{}", "--metadata", "{"], "--metadata"),
        (["echo_task", '{"a": 1}', "--payload", "{}"], "once"),
        ([], "TASK_TYPE"),
    ],
)
def test_what_cannot_be_submitted_ends_with_2_and_names_the_fault(commands, arguments, told):
    result = commands("submit", *arguments, code=2)
    assert result.stdout == ""
    assert told in result.stderr


def test_a_full_queue_ends_with_5(commands):
    commands.environment["DTQ_MAX_QUEUE_DEPTH"] = "1"
    commands("submit", "echo_task")
    assert "DTQ_MAX_QUEUE_DEPTH" in commands("submit", "echo_task", code=5).stderr


def test_a_key_that_came_with_another_body_ends_with_2(commands):
    first = commands("submit", "echo_task", "--idempotency-key", "k").stdout.split()
    told = commands("submit", "echo_task", '{"a": 1}', "--idempotency-key", "k", code=2).stderr
    assert "another body" in told
    assert first[0] in told


# --- looking ----------------------------------------------------------------------------------------------------------


def test_get_shows_what_became_of_a_task(commands, worker):
    task_id = commands.json("submit", "flaky_task", '{"fail_times": 1}')["task_id"]
    commands("task", "wait", task_id)
    shown = commands("task", "get", task_id).stdout
    for text in (task_id, "succeeded", '{"fail_times": 1}', '{"attempts": 2}', "RetryableError", "TRY"):
        assert text in shown
    assert commands.json("get", task_id)["attempts"][0]["error_class"].endswith("RetryableError")


def test_get_shows_tracebacks_on_demand_and_says_that_there_are_some(commands):
    good, bad = (commands.json("submit", *asked)["task_id"] for asked in (
        ("echo_task",), ("always_fail_task", '{"message": "no\\u001b[2Jluck"}', "--max-attempts", "1"),
    ))  # fmt: skip
    commands.work()
    shown = commands("get", bad)
    assert "Traceback" not in shown.stdout
    assert shown.stderr == f"where it failed: flask dtq get {bad} --traceback\n"
    full = commands("get", bad, "--traceback")
    assert full.stderr == ""
    assert full.stdout.startswith(shown.stdout)
    told = full.stdout.removeprefix(shown.stdout)
    assert told.startswith("\nattempt 1, ")
    assert "examples/tasks.py" in told
    assert "\x1b" not in told
    assert commands("get", good).stderr == ""
    assert commands("get", good, "--traceback").stderr == "no traceback is stored\n"


@pytest.mark.parametrize("arguments", [("--wait", NO_ID), (NO_ID, "--wait"), (NO_ID, "--wait", "5")])
def test_get_points_those_who_want_to_wait_to_wait(commands, arguments):
    result = commands("get", *arguments, code=2)
    assert "flask dtq task wait TASK_ID" in result.stderr
    assert "--wait" not in commands("get", "--help").stdout


def test_list_filters_pages_and_says_where_it_goes_on(commands):
    ids = [commands.json("submit", "echo_task", "--tag", f"t{n % 2}")["task_id"] for n in range(4)]
    commands("submit", "sleep_task", "--queue", "other", "--delay", "50")
    assert len(commands("list").stdout.splitlines()) == 6
    page = commands.json("task", "ls", "--type", "echo_task", "--limit", "3")
    assert [task["task_id"] for task in page["tasks"]] == ids[:0:-1]
    assert "payload" not in page["tasks"][0]
    rest = commands.json("list", "--type", "echo_task", "--limit", "3", "--cursor", page["next_cursor"])
    assert [task["task_id"] for task in rest["tasks"]] == ids[:1]
    assert "--cursor" in commands("list", "--limit", "2").stderr
    assert {task["task_id"] for task in commands.json("list", "--tag", "t1")["tasks"]} == {ids[1], ids[3]}
    assert len(commands.json("list", "--queue", "other", "--status", "pending")["tasks"]) == 1


def test_nothing_found_is_no_failure(commands):
    result = commands("list", "--status", "failed")
    assert (result.stdout, result.stderr) == ("", "no tasks\n")
    assert commands.json("list", "--queue", "none") == {"tasks": [], "next_cursor": None}
    assert commands("queue", "ls").stdout == commands("worker", "ls").stdout == ""


@pytest.mark.parametrize("command", ["get", "cancel", "task result", "task wait", "dlq requeue"])
def test_an_unknown_task_ends_with_3_and_no_id_with_2(commands, command):
    result = commands(*command.split(), NO_ID, code=3)
    assert NO_ID in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "no task id" in commands(*command.split(), "abc", code=2).stderr


def test_wait_ends_as_the_task_does(commands):
    good, bad, late = (commands.json("submit", *asked)["task_id"] for asked in (
        ("echo_task",), ("permanent_fail_task", '{"message": "no luck"}'), ("echo_task", "--delay", "60"),
    ))  # fmt: skip
    commands.work()
    assert commands.json("task", "wait", good)["status"] == "succeeded"
    failed = commands("task", "wait", bad, code=1)
    assert "dead_lettered" in failed.stdout
    assert "no luck" in failed.stderr
    assert commands.json("task", "wait", bad, code=1)["status"] == "dead_lettered"
    assert "still pending" in commands("task", "wait", late, "--timeout", "0.1", code=75).stderr


def test_result_prints_json_or_tells_why_not(commands, server):
    given = {"said": "hällo", "n": 9007199254740993}
    good, bad, late, none, large = (commands.json("submit", *asked)["task_id"] for asked in (
        ("echo_task", '{"said": "hällo", "n": 9007199254740993}'), ("permanent_fail_task",),
        ("echo_task", "--delay", "60"), ("echo_task", "{}"), ("echo_task", f'{{"x": "{"x" * 9000}"}}'),
    ))  # fmt: skip
    commands.work()
    assert commands("task", "result", good).stdout == '{"said": "hällo", "n": 9007199254740993}\n'
    assert commands.json("task", "result", good) == {"task_id": good, "result": given}
    assert commands("task", "result", none).stdout == "{}\n"
    assert "DTQ_RESULT_MAX_BYTES and was not kept" in commands("task", "result", large, code=1).stderr
    assert "no result" in commands("task", "result", bad, code=1).stderr
    assert "no result yet" in commands("task", "result", late, code=4).stderr
    for key in server.call("KEYS", "*:result:*"):
        server.call("DEL", key)
    assert "DTQ_RESULT_RETENTION_S" in commands("task", "result", good, code=3).stderr


# --- changing ---------------------------------------------------------------------------------------------------------


def test_cancel_ends_what_waits_and_says_when_it_is_too_late(commands, client):
    task_id = commands.json("submit", "echo_task")["task_id"]
    assert commands("cancel", task_id, "--reason", "not needed").stdout == f"{task_id}  cancelled\n"
    assert client.get(task_id).reason == "not needed"
    assert "cancelled" in commands("task", "cancel", task_id, code=4).stderr
    other = commands.json("submit", "echo_task")["task_id"]
    assert commands.json("cancel", other)["status"] == "cancelled"


def test_a_running_task_is_asked_to_end(commands, worker, wait_until):
    task_id = commands.json("submit", "sleep_task", '{"seconds": 30}')["task_id"]
    wait_until(lambda: commands.json("get", task_id)["status"] == "running", what="the start")
    assert "its worker is told" in commands("cancel", task_id).stdout
    assert commands.json("task", "wait", task_id, "--timeout", "10", code=1)["status"] == "cancelled"


def test_queues_are_listed_shown_paused_and_resumed(commands, client):
    for priority in ("9", "9", "1"):
        commands("submit", "echo_task", "--queue", "mail", "--priority", priority)
    paused = commands("queue", "pause", "mail", "--reason", "too hot")
    assert (paused.stdout, paused.stderr) == ("mail is paused\n", "")
    misspelt = commands("queue", "pause", "mial")
    assert misspelt.stdout == "mial is paused\n"
    assert "mial holds no tasks and no worker serves it" in misspelt.stderr
    commands("queue", "resume", "mial")
    assert commands.json("queue", "pause", "mail") == {"queue": "mail", "paused": True, "changed": False}
    assert client.queries.queue("mail").paused["by"] == f"cli:{getpass.getuser()}"
    row = commands("queue", "list").stdout.splitlines()[1].split()
    assert row[:3] == ["mail", "paused", "3"]
    shown = commands("queue", "stats", "mail").stdout
    for text in ("too hot", "priority 9", "2 waiting", "priority 1", "1 waiting"):
        assert text in shown
    assert commands.json("queue", "stats", "mail")["waiting_by_priority"]["9"] == 2
    assert [one["queue"] for one in commands.json("queue", "stats")["queues"]] == ["mail"]
    assert commands("queue", "resume", "mail").stdout == "mail is open\n"
    assert commands.json("queue", "resume", "mail") == {"queue": "mail", "paused": False, "changed": False}
    assert commands.json("queue", "list")["queues"][0]["paused"] is False
    assert "a queue's name" in commands("queue", "pause", "Not A Queue", code=2).stderr


def test_a_queue_that_nobody_uses_is_not_found_and_one_that_only_waits_for_tasks_is(commands, client):
    client.broker.register(Engine(client.server).worker("w1", queues=("idle",)), {})
    client.pause("closed")
    assert "there is no queue idel" in commands("queue", "stats", "idel", code=3).stderr
    assert commands("queue", "stats", "idel", "--json", code=3).stdout == ""
    for name in ("idle", "closed"):
        assert commands.json("queue", "stats", name)["depth"] == 0


def test_dead_letters_are_listed_and_queued_again(commands):
    ids = [commands.json("submit", "permanent_fail_task", f'{{"message": "no {n}"}}')["task_id"] for n in range(2)]
    commands.work()
    assert "no 1" in commands("dlq", "list").stdout
    listed = commands.json("dlq", "ls", "--type", "permanent_fail_task")["dead_letters"]
    assert sorted(one["task_id"] for one in listed) == sorted(ids), (
        "which of the two ended first is the threads' own affair"
    )
    assert commands.json("dlq", "list", "--queue", "other")["dead_letters"] == []
    assert commands("dlq", "requeue", ids[0], "--priority", "9").stdout == f"{ids[0]}  queued\n"
    again = commands.json("get", ids[0])
    assert (again["status"], again["priority"], again["requeued"]) == ("queued", 9, 1)


def test_requeue_does_what_it_can_and_ends_as_the_first_that_it_could_not(commands):
    dead = commands.json("submit", "permanent_fail_task")["task_id"]
    commands.work()
    waiting = commands.json("submit", "echo_task")["task_id"]
    result = commands("dlq", "requeue", waiting, dead, NO_ID, code=4)
    assert result.stdout == f"{dead}  queued\n"
    assert len(result.stderr.splitlines()) == 2
    told = commands.json("dlq", "requeue", waiting, code=4)
    assert told["tasks"] == []
    assert "not dead_lettered" in told["errors"][0]


# --- workers, status, settings ----------------------------------------------------------------------------------------


def test_workers_are_listed_as_the_api_shows_them(commands, worker, client):
    assert commands("worker", "list").stdout.splitlines()[1].split()[:3] == ["w1", "running", "0/4"]
    (shown,) = commands.json("worker", "ls")["workers"]
    assert shown["worker_id"] == "w1"
    assert "echo_task" in shown["task_types"]
    (info,) = client.queries.workers()
    assert info.as_json()["worker_id"] == "w1"


def test_status_of_a_stack_at_work_is_well(commands, worker, wait_until):
    task_id = commands.json("submit", "permanent_fail_task")["task_id"]
    commands("task", "wait", task_id, code=1)
    wait_until(lambda: commands.json("status")["leader"], what="a leader")
    shown = commands("status").stdout
    for text in ("all is well", "1 dead letter:", "1 dead_lettered", "default", "w1"):
        assert text in shown
    told = commands.json("status")
    assert (told["verdict"], told["attention"], told["totals"]["dead_lettered"]) == ("ok", [], 1)
    assert (told["leader"], told["redis"]["eviction_policy"]) == ("w1", "noeviction")


def test_status_without_a_worker_ends_with_1(commands):
    commands("submit", "echo_task")
    result = commands("status", code=1)
    assert "needs attention" in result.stdout
    assert "no worker is running" in result.stdout
    assert commands.json("status", code=1)["verdict"] == "attention"


def test_status_knows_what_nobody_serves_what_is_full_and_what_is_paused(commands, client, worker):
    for queue in ("left", "held"):
        commands("submit", "echo_task", "--queue", queue)
    commands("queue", "pause", "held")
    queues, workers = client.queries.queues(), client.queries.workers()
    (unserved,) = needs_attention(queues, workers, 10_000, "noeviction")
    assert unserved.startswith("1 task waits in left,")
    assert len(needs_attention(queues, workers, 1, "allkeys-lru")) == 1 + 2 + 1
    assert "held is paused" in worth_a_note(queues, workers)[0]
    assert "`flask dtq queue resume held`" in worth_a_note(queues, workers)[0]


def test_the_demo_shows_every_end_that_a_task_can_have(commands, worker, monkeypatch):
    shown = commands("demo").stdout
    for text in ("succeeded", "cancelled", "dead_lettered", "all 10 went as told", "the highest priority"):
        assert text in shown
    monkeypatch.setattr(demo_command, "LIMIT_S", 0.0)
    assert "have not ended" in commands("demo", code=75).stderr


def test_the_demo_without_a_worker_says_what_to_start(commands):
    assert "flask dtq up" in commands("demo", code=1).stderr


def test_config_show_has_every_setting_and_no_secret(commands):
    commands.environment |= {"DTQ_API_KEY": "opensesame", "DTQ_REDIS_URL": "redis://u:s3cr%2Ft@127.0.0.1:1/0"}
    shown = commands("config", "show").stdout
    told = commands.json("config", "show")
    assert told["DTQ_REDIS_URL"] == "redis://u:***@127.0.0.1:1/0"
    assert told["DTQ_API_PORT"] == "8000"
    for secret in ("opensesame", "s3cr%2Ft", "s3cr/t"):
        assert secret not in shown
        assert secret not in str(told)
    assert set(commands.json("config", "show", "--changed")) == set(commands.environment)


def test_config_check_tells_every_fault_and_warns_about_names(commands, tmp_path, monkeypatch):
    assert "echo_task" in commands("config", "check").stdout
    commands.environment["DTQ_API_PRT"] = "1"
    result = commands("config", "check")
    assert "DTQ_API_PRT" in result.stderr
    commands.environment["DTQ_TASKS"] = "no_such_module"
    assert "no_such_module" in commands("config", "check", code=78).stderr
    commands.environment |= {"DTQ_API_PORT": "x", "DTQ_WEB_THREADS": "0"}
    lines = commands("config", "check", code=78).stderr.splitlines()
    assert sum("DTQ_API_PORT=x" in line or "DTQ_WEB_THREADS=0" in line for line in lines) == 2
    told = commands.json("config", "check", code=78)
    assert not told["ok"]
    assert len(told["errors"]) == 2


def test_config_check_refuses_modules_without_any_handler(commands, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bare_module.py").write_text("x = 1\n")
    commands.environment["DTQ_TASKS"] = "bare_module"
    assert "bare_module has no handler" in commands("config", "check", code=78).stderr
    commands.environment["DTQ_TASKS"] = "bare_module,examples.tasks"
    result = commands("config", "check")
    assert "Note: DTQ_TASKS: bare_module adds no handler" in result.stderr
    assert "echo_task" in result.stdout


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_misspelt_name_is_told_once(command):
    with flask("config", command, environment={"DTQ_API_PRT": "1"}) as process:
        _, said = process.communicate(timeout=50)
    assert said.count("DTQ_API_PRT is no setting") == 1


def test_wrong_settings_end_every_command_with_78_in_one_line(commands):
    commands.environment |= {"DTQ_API_PORT": "x", "DTQ_WEB_THREADS": "0"}
    result = commands("status", code=78)
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1


def test_a_number_that_is_none_is_refused(commands):
    for arguments in (["task", "wait", "0" * 32, "--timeout", "nan"], ["queue", "list", "--watch", "nan"]):
        assert "is not a number" in commands(*arguments, code=2).stderr


def test_seconds_with_a_unit_are_refused_with_how_to_write_them(commands):
    for arguments in (["submit", "echo_task", "--delay", "3s"], ["task", "wait", "0" * 32, "--timeout", "1m"]):
        told = commands(*arguments, code=2).stderr
        assert "is no number of seconds: write one without a unit, such as 3" in told


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full disk to write to")
def test_an_output_that_cannot_be_written_is_told_in_a_line(server):
    environment = {**os.environ, "DTQ_REDIS_URL": server.safe_url, "FLASK_APP": str(PROJECT / "app.py")}
    command = [sys.executable, "-m", "flask", "dtq", "queue", "list", "--json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, "Error: the output could not be written: No space left on device\n")


def test_ctrl_c_while_waiting_is_no_failure_of_the_task(commands, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    task_id = commands("submit", "echo_task", "{}").stdout.split()[0]
    monkeypatch.setattr("dtq.client.Client.wait", interrupted)
    commands("task", "wait", task_id, code=130)


def test_tables_of_queues_and_workers_fit_forty_columns(commands, worker, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    commands("submit", "echo_task", "{}", "--queue", "a-queue-with-a-rather-long-name")
    for command in ("queue", "worker"):
        lines = commands(command, "list").stdout.splitlines()
        assert len(lines) > 1
        assert max(map(len, lines)) <= 40, command
