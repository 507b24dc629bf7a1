"""Bells: who waits is woken by a token, by nothing else, and does not hang on what happened to the streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from dtq.errors import RedisUnavailable
from dtq.keys import GROUP, LEADER_GROUP
from dtq.redisio import CommandError, Interrupted, Server
from dtq.streams import WAKE_MAXLEN, Bell, Doorbell, LeaderBell, ensure_group, ring
from tests.conftest import ProxyFactory
from tests.support.engine import Engine
from tests.support.waiting import wait_until


class Waiting:
    """A wait in a thread of its own."""

    def __init__(self, bell: Bell, timeout_s: float) -> None:
        self.answer: bool | Exception | None = None
        self.took_s = 0.0
        self._thread = threading.Thread(target=self._wait, args=(bell, timeout_s))
        self._thread.start()

    def _wait(self, bell: Bell, timeout_s: float) -> None:
        began = time.monotonic()
        try:
            self.answer = bell.wait(timeout_s)
        except Exception as error:
            self.answer = error
        self.took_s = time.monotonic() - began

    def result(self) -> bool | Exception | None:
        self._thread.join(10)
        assert not self._thread.is_alive(), "the wait did not end"
        return self.answer


def blocked(server: Server, number: int = 1) -> bool:
    info = server.call("INFO", "clients").decode()
    return f"blocked_clients:{number}\r" in info


@pytest.fixture
def engine(server: Server) -> Engine:
    return Engine(server)


@pytest.fixture
def bell(engine: Engine) -> Iterator[Doorbell]:
    made = Doorbell(engine.server, engine.keys, ["default", "other"])
    yield made
    made.close()


@pytest.mark.usefixtures("bounded_keys")
def test_a_waiting_worker_is_woken_by_a_submission_to_any_of_its_queues(engine: Engine, bell: Doorbell) -> None:
    for queue in ("default", "other"):
        waiting = Waiting(bell, 5)
        wait_until(lambda: blocked(engine.server), what="the wait")
        engine.submit(queue=queue)
        assert waiting.result() is True
        assert waiting.took_s < 2


def test_nobody_is_woken_for_a_queue_that_is_not_his(engine: Engine, bell: Doorbell) -> None:
    waiting = Waiting(bell, 0.1)
    engine.submit(queue="elsewhere")
    assert waiting.result() is False
    assert waiting.took_s >= 0.09


def test_tokens_that_came_before_the_wait_are_heard_once_and_all_at_once(engine: Engine, bell: Doorbell) -> None:
    for _ in range(5):
        ring(engine.server, engine.keys, "default")
    assert bell.wait(1)
    assert not bell.wait(0.01)
    pending = engine.server.call("XPENDING", engine.keys.wake("default"), GROUP)
    assert pending[0] == 0, "a token is gone once read"


def test_one_token_wakes_one_of_many_workers(engine: Engine) -> None:
    bells = [Doorbell(engine.server, engine.keys, ["default"]) for _ in range(3)]
    waits = [Waiting(bell, 0.4) for bell in bells]
    wait_until(lambda: blocked(engine.server, 3), what="three waits")
    ring(engine.server, engine.keys, "default")
    assert sorted(str(waiting.result()) for waiting in waits) == ["False", "False", "True"]
    for bell in bells:
        bell.close()


def test_tokens_do_not_pile_up_where_nobody_listens(engine: Engine) -> None:
    for _ in range(300):
        ring(engine.server, engine.keys, "default")
    assert engine.server.call("XLEN", engine.keys.wake("default")) < 2 * WAKE_MAXLEN


def test_a_wake_stream_of_a_queue_that_is_never_used_ends_by_itself(engine: Engine, bell: Doorbell) -> None:
    assert not bell.wait(0.01)
    assert engine.server.call("PTTL", engine.keys.wake("other")) > 0
    assert engine.queries.queue_names() == [], "waiting on a queue does not make it one"


def test_the_leader_is_woken_by_what_is_due_earlier_than_he_knows(engine: Engine) -> None:
    bell = LeaderBell(engine.server, engine.keys)
    engine.submit(delay_seconds=100)
    assert bell.wait(1)
    engine.submit(delay_seconds=200)
    assert not bell.wait(0.01), "he knows of something earlier"
    engine.submit(delay_seconds=50)
    assert bell.wait(1)
    bell.close()


@pytest.mark.usefixtures("bounded_keys")
def test_a_queue_that_is_called_scheduler_and_the_leader_do_not_take_each_others_tokens(engine: Engine) -> None:
    leader = LeaderBell(engine.server, engine.keys)
    worker = Doorbell(engine.server, engine.keys, ["scheduler"])
    engine.submit(queue="scheduler")
    assert worker.wait(1)
    engine.submit(delay_seconds=1)
    leader.wait(1)
    groups = engine.server.call("XINFO", "GROUPS", engine.keys.scheduler_wake())
    assert sorted(group[1] for group in groups) == sorted([GROUP.encode(), LEADER_GROUP.encode()])
    for bell in (leader, worker):
        bell.close()


@pytest.mark.parametrize("loss", ["FLUSHALL", "DEL"])
def test_a_waiter_whose_streams_vanish_makes_them_again(any_server: Server, loss: str) -> None:
    """NOGROUP, or UNBLOCKED under a blocked reader, by the kind of server."""
    engine = Engine(any_server)
    bell_queues = ["default", "other"]
    bell = Doorbell(any_server, engine.keys, bell_queues)
    assert not bell.wait(0.01)
    waiting = Waiting(bell, 5)
    wait_until(lambda: blocked(any_server), what="the wait")
    any_server.call(loss, *map(engine.keys.wake, bell_queues if loss == "DEL" else ()))
    wait_until(lambda: waiting.answer is not None or blocked(any_server), what="the end of the wait, or its next one")
    engine.submit()
    if waiting.answer is None:
        wait_until(
            lambda: waiting.answer is not None or engine.server.call("EXISTS", engine.keys.wake("other")),
            what="the streams, or the end",
        )
    assert bell_hears(engine, bell, waiting)
    bell.close()


def bell_hears(engine: Engine, bell: Doorbell, waiting: Waiting) -> bool:
    """Whether a token reaches the waiter, in this wait or in the next."""
    if waiting.result() is True:
        return True
    engine.broker.wake("default")
    return bell.wait(1)


def test_an_interrupted_wait_ends_at_once_and_the_next_does_not_begin(engine: Engine, bell: Doorbell) -> None:
    waiting = Waiting(bell, 20)
    wait_until(lambda: blocked(engine.server), what="the wait")
    bell.interrupt()
    assert isinstance(waiting.result(), Interrupted)
    assert waiting.took_s < 5
    with pytest.raises(Interrupted):
        bell.wait(20)


def test_a_bell_whose_group_is_lost_again_and_again_is_not_asked_for_ever(
    server: Server, flaky_proxy: ProxyFactory
) -> None:
    proxy = flaky_proxy(server.safe_url)
    client = Server.connect(proxy.url)
    bell = Doorbell(client, Engine(client).keys, ["default"])
    for error in ("NOGROUP No such key", "UNBLOCKED the stream key no longer exists"):
        proxy.answer(error, matching=b"XREADGROUP")
        before = len(proxy.commands)
        assert bell.wait(0.01), "look, and wait again"
        assert len(proxy.commands) - before < 10
    proxy.answer("ERR unknown command", matching=b"XREADGROUP")
    before = len(proxy.commands)
    with pytest.raises(CommandError):
        bell.wait(0.01)
    assert len(proxy.commands) == before + 1
    proxy.answer("LOADING not yet", matching=b"XREADGROUP")
    with pytest.raises(RedisUnavailable):
        bell.wait(0.01)
    proxy.stop_answering()
    engine = Engine(client)
    engine.submit()
    assert bell.wait(1)
    bell.close()
    client.close()


def test_a_group_is_made_once_and_anything_else_in_its_place_is_told(engine: Engine) -> None:
    one, two = engine.keys.wake("one"), engine.keys.wake("two")
    ensure_group(engine.server, one, GROUP)
    ensure_group(engine.server, one, GROUP)
    engine.server.call("SET", two, "no stream")
    with pytest.raises(CommandError, match="WRONGTYPE"):
        ensure_group(engine.server, two, GROUP)
