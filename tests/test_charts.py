"""What the charts are drawn from: right for all processes, there after a restart, and cheap to ask for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dtq.charts import HOUR, MOST_SCRIPTS, PAIRS_A_SCRIPT, Charts
from dtq.redisio import Server
from tests.support.engine import Engine


@pytest.fixture
def engine(server: Server) -> Engine:
    return Engine(server)


@pytest.fixture(autouse=True)
def _away_from_the_end_of_a_minute() -> None:
    """A minute that turns in the middle of a test would split what it counts."""
    left_s = 60 - time.time() % 60
    if left_s < 3:
        time.sleep(left_s)


def counted_calls(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the names of what is sent to Redis from now on; of scripts, only that they are run."""
    sent: list[str] = []
    call, pipeline = server.call, server.pipeline

    def counting_call(*args: Any) -> Any:
        sent.append(str(args[0]))
        return call(*args)

    def counting_pipeline(commands: Any) -> Any:
        sent.extend(str(command[0]) for command in commands)
        return pipeline(commands)

    monkeypatch.setattr(server, "call", counting_call)
    monkeypatch.setattr(server, "pipeline", counting_pipeline)
    return sent


def test_what_happened_is_counted_by_queue_and_over_all(engine: Engine) -> None:
    for queue in ("default", "mail"):
        engine.submit_many(3, queue=queue)
    engine.commit(engine.claim_one(queue="mail"))
    engine.fail_for_good(queue="bulk")
    hour = engine.charts.hour(["default", "mail", "bulk"])
    assert hour.complete
    assert len(hour.counts("submitted")) == HOUR
    assert hour.counts("submitted")[-1] == 7
    assert hour.counts("submitted", queue="mail")[-1] == 3
    assert hour.counts("succeeded", "dead_lettered")[-1] == 2
    assert sum(hour.counts("submitted")[:-1]) == 0
    assert hour.counts("submitted", queue="never-used") == [0] * HOUR


def test_types_of_a_queue_are_told_apart_the_busiest_first(engine: Engine) -> None:
    engine.submit(task_type="mail:send")
    engine.submit_many(2, task_type="report")
    engine.claim()
    counts = engine.charts.by_type("default")
    assert list(counts) == ["report", "mail:send"]
    assert counts["mail:send"] == {"submitted": 1, "started": 1}


def test_a_look_at_the_queues_notes_the_most_that_was_there(engine: Engine) -> None:
    engine.submit_many(5)
    engine.submit(queue="mail")
    engine.broker.upkeep.sample()
    engine.claim(limit=4)
    time.sleep(1.1)
    engine.broker.upkeep.sample()
    hour = engine.charts.hour(["default", "mail"])
    assert hour.most("waiting")[-1] == 6, "what was taken meanwhile does not lower it"
    assert hour.most("waiting", queue="mail")[-1] == 1
    assert hour.most("running")[-1] == 4
    assert hour.most("oldest")[-1] in (1, 2)
    assert hour.most("waiting")[:-1] == [None] * (HOUR - 1), "where nobody looked, nothing is known"


def test_an_idle_look_is_a_look(engine: Engine) -> None:
    engine.broker.upkeep.sample()
    assert engine.charts.hour(["default"]).most("waiting")[-1] == 0


def test_minutes_that_are_over_are_read_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.submit()
    sent = counted_calls(engine.server, monkeypatch)
    engine.charts.hour(["default"])
    assert len(sent) <= 10
    sent.clear()
    engine.charts.hour(["default"])
    assert sent == ["TIME", "EVALSHA", "EVALSHA"]


@pytest.mark.slow
def test_a_thousand_queues_do_not_make_a_page_wait(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"q{number}" for number in range(1000)]
    charts = Charts(engine.server, engine.settings)
    charts.hour([])
    sent = counted_calls(engine.server, monkeypatch)
    assert not charts.hour(names, minutes=HOUR).complete
    assert len(sent) <= MOST_SCRIPTS + 3, "the SCRIPT LOAD of the first run is one of them"
    reads = 1
    while not charts.hour(names, minutes=HOUR).complete:
        reads += 1
        assert reads < 1000 * HOUR / (MOST_SCRIPTS * PAIRS_A_SCRIPT - 1000) + 3, "a read takes up where the last ended"
