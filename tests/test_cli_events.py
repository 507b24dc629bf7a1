"""`flask dtq events`: the past by itself, and what happens until somebody ends it."""

from __future__ import annotations

import json
import signal
import threading
import time

import pytest

from dtq.redisio import Server
from tests.support.commands import Commands, flask
from tests.support.engine import Engine


@pytest.fixture
def commands(server: Server) -> Commands:
    return Commands(server.safe_url)


@pytest.fixture
def engine(server: Server) -> Engine:
    return Engine(server)


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_newest_events_are_shown_for_people_and_as_lines_of_json(commands: Commands, engine: Engine) -> None:
    first, second = engine.submit(queue="a"), engine.submit(queue="b")
    claim = engine.claim_one(queue="a")
    engine.commit(claim, "retry", delay_ms=1500)
    rows = commands("events").stdout.splitlines()
    assert [row.split()[1] for row in rows] == ["TASK_QUEUED", "TASK_QUEUED", "TASK_STARTED", "TASK_RETRY_SCHEDULED"]
    assert rows[3].split("  ")[-1] == "delay_ms 1500"
    assert first in rows[0]
    assert second in rows[1]
    found = lines(commands("events", "--json", "--type", "queued", "--queue", "a").stdout)
    assert [(one["type"], one["task_id"]) for one in found] == [("TASK_QUEUED", first)]
    assert len(commands("events", "--limit", "1").stdout.splitlines()) == 1
    place = str(found[0]["id"])
    after = lines(commands("events", "--json", "--since", place, "--task", first).stdout)
    assert [one["type"] for one in after] == ["TASK_STARTED", "TASK_RETRY_SCHEDULED"]
    gone = commands("events", "--since", "1-1-1", "--limit", "2")
    assert len(gone.stdout.splitlines()) == 2
    assert "missing" in gone.stderr
    assert lines(commands("events", "--since", "1-1-1", "--json").stdout)[0] == {"type": "gap"}


def test_nothing_is_shown_of_nothing_and_nothing_from_outside_moves_the_cursor(
    commands: Commands, engine: Engine
) -> None:
    assert commands("events").stdout == ""
    engine.server.call("XADD", engine.keys.events(), "*", "e", "TASK_FAILED\tt\tq\t\x1b[31my\t1\tw\ta\x1b[0mb")
    told = commands("events").stdout
    assert "TASK_FAILED" in told
    assert "\x1b" not in told


@pytest.mark.parametrize(
    "wrong", [("--type", "nope"), ("--since", "x"), ("--task", "1"), ("--queue", "A B"), ("--limit", "0")]
)
def test_what_cannot_be_asked_for_is_a_usage_error(commands: Commands, wrong: tuple[str, str]) -> None:
    assert commands("events", *wrong, code=2).stdout == ""


def test_following_ends_with_the_limit(commands: Commands, engine: Engine) -> None:
    engine.submit()

    def work() -> None:
        time.sleep(0.3)
        engine.commit(engine.claim_one())
        engine.submit()

    worker = threading.Thread(target=work)
    worker.start()
    found = lines(commands("events", "--watch", "--limit", "3", "--json").stdout)
    worker.join()
    assert [one["type"] for one in found] == ["TASK_QUEUED", "TASK_STARTED", "TASK_SUCCEEDED"]


def test_following_ends_with_ctrl_c_and_status_0(commands: Commands, engine: Engine) -> None:
    process = flask("events", "--watch", "--json", environment=commands.environment)
    assert process.stdout is not None
    try:
        engine.submit()
        assert json.loads(process.stdout.readline())["type"] == "TASK_QUEUED"
        task_id = engine.submit()
        assert json.loads(process.stdout.readline())["task_id"] == task_id
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=20)
        assert process.returncode == 0
        assert told.strip() == ""
    finally:
        process.kill()
        process.communicate()


def test_redis_out_of_reach_is_exit_69() -> None:
    assert Commands("redis://127.0.0.1:1")("events", "--watch", code=69).stdout == ""
