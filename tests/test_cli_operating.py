"""`flask dtq doctor`, `bench`, `openapi`, `completion` and `--watch`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from dtq.commands import checks
from dtq.commands.root import COMMANDS, dtq
from dtq.redisio import Server
from tests.support import PROJECT
from tests.support.commands import Commands
from tests.support.dump import names
from tests.support.engine import Engine
from tests.support.servers import free_port
from tests.support.topologies import ADMINISTRATOR, restricted_user
from tests.support.web import running_api


@pytest.fixture
def commands(server):
    return Commands(server.safe_url)


def findings(commands, code=1):
    told = commands.json("doctor", code=code)
    assert all(one["fix"] for one in told["findings"] if one["level"] != "ok"), "a fix with each finding"
    return {one["check"]: one for one in told["findings"]}


def test_doctor_finds_nothing_where_all_is_well(server_factory):
    process = server_factory(aof=True)
    commands = Commands(process.url)
    server = Server.connect(process.url)
    engine = Engine(server)
    engine.register()
    engine.broker.tick(engine.worker(), [])
    engine.submit_many(5)
    commands.environment |= {"DTQ_QUEUES": "default"}
    told = commands.json("doctor")
    assert told["verdict"] == "ok"
    checked = {one["check"]: one for one in told["findings"]}
    assert {"server", "latency", "persistence", "eviction", "clock", "scripts", "workers", "orphans"} <= checked.keys()
    levels = {name: one["level"] for name, one in checked.items() if name != "latency"}  # of a busy machine
    assert set(levels.values()) - {"ok"} <= {"warning"}
    assert levels["versions"] == "warning"  # the worker of the test says that it is 0
    shown = commands("doctor").stdout
    assert "the append-only file is on" in shown
    server.close()


def test_doctor_names_what_is_wrong_and_what_to_do(server, commands, monkeypatch):
    server.call("CONFIG", "SET", "maxmemory-policy", "volatile-lru", "maxmemory", 100 * 2**20)
    engine = Engine(server)
    engine.submit_many(3)
    server.call("DEL", engine.keys.stream("default", 5))
    server.call("ZADD", engine.keys.schedule(), 1000, "f" * 32)
    monkeypatch.setattr(checks, "FULL_SHARE", 0.0001)
    monkeypatch.setattr(checks, "SKEW_S", -1)
    monkeypatch.setattr(checks, "SLOW_MS", -1)
    commands.environment |= {"DTQ_API_HOST": "0.0.0.0", "DTQ_MAX_QUEUE_DEPHT": "1"}
    found = findings(commands)
    wrong = {name for name, one in found.items() if one["level"] == "wrong"}
    assert wrong == {"persistence", "eviction", "memory", "workers", "schedule"}
    assert {"latency", "clock", "orphans", "keys", "settings"} == {
        name for name, one in found.items() if one["level"] == "warning"
    }
    assert "appendonly yes" in found["persistence"]["fix"]
    assert "noeviction" in found["eviction"]["fix"]
    assert "DTQ_MAX_QUEUE_DEPTH" in found["settings"]["message"]
    result = commands("doctor", code=1)
    assert "-> appendonly yes" in result.stdout
    assert "checks found something wrong" in result.stderr


def test_doctor_tells_of_queues_that_nobody_serves_and_of_old_servers(server, commands, monkeypatch):
    engine = Engine(server)
    engine.register(queues=("mail",))
    engine.submit(queue="default")
    found = findings(commands)
    assert found["queues"]["message"] == "1 task in default, which no running worker serves"
    monkeypatch.setattr(checks, "OLDEST_SERVER", (99, 0))
    commands.environment["DTQ_DURABLE_WRITES"] = "true"
    found = findings(commands)
    assert found["server"]["level"] == found["durability"]["level"] == "wrong"


def test_doctor_says_that_redis_is_out_of_reach(tmp_path):
    commands = Commands(f"redis://:s3cret@127.0.0.1:{free_port()}")
    told = commands.json("doctor", code=69)
    assert told["findings"][0]["level"] == "wrong"
    assert "s3cret" not in json.dumps(told)


@pytest.mark.not_on("acl", "tls", "sentinel", "cluster", because="it makes a user of one plain server")
def test_doctor_needs_no_info(server, commands):
    server.call("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-info")
    commands.environment["DTQ_REDIS_URL"] = server.safe_url.replace("unix://", "unix://app:secret@")
    found = findings(commands)
    assert found["server"]["level"] == found["persistence"]["level"] == "warning"
    server.call("ACL", "DELUSER", "app")


def test_the_document_is_that_of_the_server(server, commands, tmp_path):
    with running_api(server.safe_url) as api:
        served = api.http.get("/api/v1/openapi.json").json
    assert json.loads(commands("openapi").stdout) == served
    commands("openapi", "--output", str(tmp_path / "api.json"))
    assert json.loads((tmp_path / "api.json").read_text()) == served
    result = commands("openapi", "--output", str(tmp_path / "no" / "api.json"), code=1)
    assert "cannot be written" in result.stderr


@pytest.mark.not_on("acl", because="dtq's user may not list keys, without which nothing is measured")
def test_bench_measures_and_leaves_nothing_behind(server, commands):
    Engine(server).submit()
    before = names(server, "*")
    found = commands.json("bench", "--tasks", "200")
    assert len(found) == 5
    assert all(value > 0 for value in found.values())
    assert names(server, "*") == before
    commands.environment["DTQ_REDIS_URL"] = "memory://"
    commands("bench", code=78)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("flask dtq task ", {"submit", "get", "list", "wait", "result", "cancel", "run"}),
        ("flask dtq list --status dead", {"dead_lettered"}),
    ],
)
def test_a_shell_completes_commands_and_values(words, expected):
    environment = {
        **os.environ, "_FLASK_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")),
        "FLASK_APP": str(PROJECT / "app.py"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", "from flask.cli import main; import sys; sys.argv[0] = 'flask'; main()"],
        env=environment, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert {line.partition(",")[2] for line in done.stdout.split()} == expected, done.stderr


def test_completion_prints_what_each_shell_reads(commands):
    for shell in ("bash", "zsh", "fish"):
        assert "_FLASK_COMPLETE" in commands("completion", shell).stdout
    told = [" ".join(line.split()) for line in commands("completion", "--help").stdout.splitlines()]
    assert "fish: flask dtq completion fish | source in ~/.config/fish/config.fish" in told


def test_watch_shows_the_same_again_until_it_is_ended(server, commands, monkeypatch):
    engine = Engine(server)
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt
        engine.submit(queue=f"q{len(looks)}")

    monkeypatch.setattr("dtq.commands.watching.time.sleep", sleep)
    result = commands("queue", "list", "--json", "--watch=0.5")
    assert looks == [0.5, 0.5, 0.5]
    assert [len(json.loads(line)["queues"]) for line in result.stdout.splitlines()] == [0, 1, 2]
    looks.clear()
    shown = commands("status", "--watch").stdout
    assert shown.count("needs attention") == 3, "its exit status is for those who look once"


def test_every_command_that_reads_can_watch():
    once = {"config show", "key list"}  # what they read does not change by itself

    def leaves(group, path):
        for name in group.list_commands(None):
            command = group.get_command(None, name)
            if hasattr(command, "list_commands"):
                yield from leaves(command, [*path, name])
            else:
                yield " ".join([*path, name]), command

    reading = {"list", "stats", "show", "get", "peek", "status", "audit", "events"}
    found = {path: command for path, command in leaves(dtq, []) if path.split()[-1] in reading and path not in once}
    assert len(found) >= 15
    for path, command in found.items():
        assert any("--watch" in parameter.opts for parameter in command.params), path


def test_every_command_is_there_and_says_what_it_is_for(commands):
    for name in COMMANDS:
        assert "Usage: flask dtq" in commands(name, "--help").stdout


def test_each_exit_code_of_the_table_is_met(server, commands):
    engine = Engine(server)
    dead, waiting = engine.fail_for_good(), engine.submit()
    met = {
        0: ["list"],
        1: ["task", "wait", dead, "--timeout", "1"],
        2: ["list", "--status", "odd"],
        3: ["get", "0" * 32],
        4: ["task", "result", waiting],
        75: ["task", "wait", waiting, "--timeout", "0"],
    }
    for code, arguments in met.items():
        result = commands(*arguments, code=code)
        assert bool(result.stderr.strip()) == bool(code), "errors go to stderr, and nothing else does"
        commands(*arguments, "--json", code=code)
    commands.environment["DTQ_MAX_QUEUE_DEPTH"] = "1"
    commands("submit", "echo", code=5)
    commands.environment["DTQ_MAX_QUEUE_DEPTH"] = "none"
    commands("list", code=78)
    commands.environment |= {"DTQ_MAX_QUEUE_DEPTH": "1", "DTQ_REDIS_URL": f"redis://127.0.0.1:{free_port()}"}
    commands("list", code=69)


@pytest.mark.slow
def test_bench_makes_nothing_that_it_could_not_remove_and_its_keys_begin_like_those_of_dtq(tmp_path):
    with restricted_user(tmp_path) as process:
        commands = Commands(process.url)
        assert "'scan'" in commands("bench", "--tasks", "100", code=69).stderr
        server = Server.connect(process.url.replace("dtq:s3cret", ADMINISTRATOR))
        assert server.call("DBSIZE") == 0
        server.call("ACL", "SETUSER", "dtq", "+scan")
        assert commands.json("bench", "--tasks", "100")["submitted a second, in bulk"] > 0
        assert server.call("DBSIZE") == 0
        server.close()
