"""The broker's own part of a call: more than one script takes, answers that are put together, names that are held."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dtq.broker import Broker
from dtq.errors import InvalidTask, QueueFull, RedisUnavailable
from dtq.model import Task
from dtq.redisio import Server
from dtq.states import Status
from dtq.streams import Doorbell, newest_id, oldest_id
from tests.support.engine import Engine
from tests.support.invariants import check_invariants


@pytest.fixture
def engine(server: Server) -> Engine:
    return Engine(server)


def test_settling_asks_again_as_long_as_a_script_gives_back_as_many_as_it_may(engine: Engine) -> None:
    engine.submit_many(250)
    for _ in range(3):
        engine.claim("w1", 100)
    assert engine.broker.settle("w1", ["never-used", "default"], []) == 250
    assert len({claim.task_id for _ in range(3) for claim in engine.claim("w2", 100)}) == 250
    check_invariants(engine.server, engine.keys, engine.settings)


def test_an_outcome_whose_lease_was_lost_is_answered_with_nothing_and_changes_nothing(engine: Engine) -> None:
    task_id, other_id = engine.submit_many(2)
    lost, held = engine.claim("w1")
    assert engine.broker.hand_back("w1", [lost]) == 1
    again = engine.claim_one("w2")
    assert engine.commit(lost, "succeed") is None
    assert engine.commit(held, "succeed") is Status.SUCCEEDED
    assert engine.field(task_id, "status") == "running"
    assert engine.field(other_id, "status") == "succeeded"
    assert engine.commit(again, "succeed", worker_id="w2") is Status.SUCCEEDED


def test_ringing_wakes_who_waits_for_the_queue(engine: Engine) -> None:
    bell = Doorbell(engine.server, engine.keys, ["default"])
    engine.broker.wake("other")
    assert not bell.wait(0.01)
    engine.broker.wake("default")
    assert bell.wait(1)
    bell.close()


def test_a_name_is_held_by_the_process_that_registered_it_last(engine: Engine) -> None:
    other = Broker(engine.server, engine.settings)
    assert engine.broker.holder_of("w1") is None
    engine.register("w1")
    assert engine.broker.holder_of("w1") is None, "it is this process"
    holder = other.holder_of("w1")
    assert holder is not None
    assert (holder.host, holder.pid) == ("host", 1)
    assert holder.process
    assert int(holder.heartbeat) > 0


@pytest.mark.parametrize("unsafe", [False, True])
def test_of_a_batch_that_is_not_safe_only_what_was_accepted_is_in_doubt(engine: Engine, unsafe: bool) -> None:
    asked: list[list[str]] = []

    def confirm(task_ids: list[str]) -> None:
        asked.append(task_ids)
        if unsafe:
            raise RedisUnavailable("no replica has answered", reason="timeout")

    strict = Engine(engine.server, max_queue_depth=1)
    broker = Broker(engine.server, strict.settings, SimpleNamespace(confirm=confirm))  # type: ignore[arg-type]
    accepted, refused = broker.submit([engine.submission(), engine.submission()])
    assert isinstance(refused, QueueFull)
    assert isinstance(accepted, RedisUnavailable if unsafe else Task)
    assert [len(task_ids) for task_ids in asked] == [1]
    assert isinstance(broker.submit([engine.submission()])[0], QueueFull)
    assert len(asked) == 1, "there was nothing to make safe"


def test_a_read_of_a_stream_begins_and_ends_at_times_or_goes_on_at_a_cursor() -> None:
    assert newest_id(None, None) == "+"
    assert newest_id(12.3456, None) == "12345"
    assert newest_id(-5, None) == "0"
    assert newest_id(12.0, "7-3") == "(7-3"
    assert oldest_id(None) == "-"
    assert oldest_id(12.3451) == "12346"
    assert oldest_id(-5) == "0"
    for cursor in ("", "0-1", "7", "7-", "x-1", "7-3 ", "1234567890123456-0"):
        with pytest.raises(InvalidTask, match="not a cursor"):
            newest_id(None, cursor)
