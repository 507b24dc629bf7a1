"""Events: what the stream holds, and one reader that hands out what happens without loss, repeat or blocking."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from dtq.errors import RedisUnavailable
from dtq.events import (
    EVENT_TYPES,
    TERMINAL_TYPES,
    Dropped,
    Event,
    EventFilter,
    EventHistory,
    EventId,
    EventReader,
    Gap,
    Item,
    Subscription,
    SubscriptionEnded,
)
from dtq.events import reader as reader_module
from dtq.events.buffer import Buffer
from dtq.events.model import event_of, lines_of
from dtq.redisio import Server
from dtq.states import Status
from tests.conftest import ServerFactory
from tests.support.engine import Engine
from tests.support.waiting import wait_until


@pytest.fixture
def engine(server: Server) -> Engine:
    return Engine(server)


@pytest.fixture
def reader(engine: Engine) -> Iterator[EventReader]:
    made = EventReader(engine.server, engine.settings)
    yield made
    made.close()


def drain(subscription: Subscription, until: int, timeout_s: float = 10.0) -> list[Item]:
    """Take items until there are so many."""
    items: list[Item] = []
    deadline = time.monotonic() + timeout_s
    while len(items) < until and time.monotonic() < deadline:
        items += subscription.get(0.2)
    return items


def kinds(items: Sequence[Item]) -> list[str]:
    return [item.as_json()["type"] for item in items]


def reading() -> bool:
    return any(thread.name == "dtq-events" for thread in threading.enumerate())


def answers(server: Server) -> bool:
    """Whether a call succeeds; the first one after a restart may meet a connection from before."""
    try:
        return bool(server.call("PING"))
    except RedisUnavailable:
        return False


def an_event(number: int, kind: str) -> Event:
    return event_of(EventId(number, 0, 0), [kind, "t", "q", "y", "1", "", ""])


# --- events and their ids ---------------------------------------------------------------------------------------------


def test_every_type_that_a_script_writes_is_known_and_is_told_as_json(engine: Engine) -> None:
    engine.pause("default", "me", "why")
    engine.resume("default", "me")
    engine.register()
    for status in Status:
        engine.seed(status)
    engine.broker.progress("w1", engine.seed(Status.RUNNING).claim, 0.5, "half")  # type: ignore[arg-type]
    engine.broker.deregister("w1")
    told = [one.as_json() for one in EventHistory(engine.server, engine.settings).newest(EventFilter(), 1000).events]
    assert [one["id"] for one in told] == sorted((one["id"] for one in told), key=EventId.parse)
    assert {one["type"] for one in told} <= EVENT_TYPES
    assert {one["type"] for one in told} >= TERMINAL_TYPES | {"TASK_QUEUED", "TASK_STARTED", "WORKER_STARTED"}
    details = {one["type"]: one["detail"] for one in told}
    assert details["TASK_PROGRESS"] == {"fraction": 0.5, "message": "half"}
    assert details["TASK_RETRY_SCHEDULED"] == {"delay_ms": 3_600_000}
    assert details["TASK_DEAD_LETTERED"] == {"reason": "exhausted"}
    assert details["QUEUE_PAUSED"] == {"by": "me", "reason": "why"}
    assert details["TASK_STARTED"] is None
    paused = next(one for one in told if one["type"] == "QUEUE_PAUSED")
    assert (paused["task_id"], paused["attempt"], paused["queue"]) == (None, None, "default")
    assert abs(time.time() - EventId.parse(paused["id"]).ms / 1000) < 60
    assert paused["time"].endswith("Z")
    assert len(paused["time"]) == len("2026-01-31T12:00:00.123Z")


@pytest.mark.parametrize(
    "text", ["", "x", "1", "1-", "-1-1", "1-1-", "1-1-1-1", "18446744073709551616-0", "1-1-1234567"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="id of an event"):
        EventId.parse(text)


def test_ids_sort_as_numbers_and_read_back_as_written() -> None:
    ids = [EventId(9, 9, 9), EventId(10, 0, 0), EventId(10, 0, 2), EventId(10, 0, 10), EventId(10, 1, 0)]
    assert sorted(ids, key=lambda one: one) == ids
    assert [EventId.parse(str(one)) for one in ids] == ids
    assert ids[3] < EventId.parse("10-0") < ids[4]
    assert EventId.parse("0").is_start


def test_what_is_no_event_in_the_stream_is_passed_over(engine: Engine) -> None:
    for fields in (["x", "y"], ["e", "a\tb"], ["e", ""], ["e", b"\xff\t" * 6], ["e", "K\tt\tq\ty\tnan\tw\td"]):
        engine.server.call("XADD", engine.keys.events(), "*", *fields)
    engine.submit()
    history = EventHistory(engine.server, engine.settings)
    assert kinds(history.newest(EventFilter(), 10).events) == ["TASK_QUEUED"]
    assert kinds(history.after(EventId.parse("0"), EventFilter(), 10).events) == ["TASK_QUEUED"]


def test_a_detail_may_hold_what_separates_fields() -> None:
    [(place, parts)] = lines_of([b"5-1", [b"e", b"TASK_CANCELLED\tt\tq\ty\t1\tw\ta\tb"]])
    assert event_of(place, parts).as_json()["detail"] == {"reason": "a\tb"}


# --- history ----------------------------------------------------------------------------------------------------------


def test_pages_go_on_where_the_last_one_ended_also_inside_an_entry(engine: Engine) -> None:
    ids = engine.submit_many(25)
    for claim in engine.claim():
        engine.commit(claim)
    history = EventHistory(engine.server, engine.settings)
    seen, place, more = [], EventId.parse("0"), True
    while more:
        page = history.after(place, EventFilter(types=frozenset({"TASK_QUEUED", "TASK_SUCCEEDED"})), 7)
        seen += [(event.type, event.task_id) for event in page.events]
        place, more = page.last, page.more
        assert not page.gap
    assert seen == [("TASK_QUEUED", one) for one in ids] + [("TASK_SUCCEEDED", one) for one in ids]
    assert history.after(place, EventFilter(), 7).events == []
    newest = history.newest(EventFilter(), 3)
    assert [event.task_id for event in newest.events] == ids[-3:]
    assert newest.last == place
    only = history.newest(EventFilter(task_id=ids[3]), 100)
    assert kinds(only.events) == ["TASK_QUEUED", "TASK_STARTED", "TASK_SUCCEEDED"]
    assert history.newest(EventFilter(queue="other"), 100).events == []


def test_a_page_says_when_something_before_it_is_gone(server: Server) -> None:
    engine = Engine(server, events_maxlen=100)
    history = EventHistory(server, engine.settings)
    empty = history.after(EventId.parse("0"), EventFilter(), 10)
    assert (empty.events, empty.gap, empty.more) == ([], False, False)
    for _ in range(3):
        engine.submit()
    first = history.newest(EventFilter(), 3).events[0].id
    assert history.after(first, EventFilter(), 10).gap is False
    for _ in range(400):
        engine.pause("q", "me")
        engine.resume("q", "me")
    page = history.after(first, EventFilter(), 10)
    assert page.gap
    assert len(page.events) == 10
    assert history.after(page.last, EventFilter(), 10).gap is False
    assert history.after(EventId.parse("0"), EventFilter(), 10).gap is True
    assert history.after(EventId.parse("99999999999999-0"), EventFilter(), 10).gap is True


def test_a_page_of_a_rare_kind_looks_at_a_bounded_number_of_events(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtq.events.history.MOST_LOOKED_AT", 300)
    monkeypatch.setattr("dtq.events.history._ENTRIES_A_READ", 50)
    rare = EventFilter(types=frozenset({"QUEUE_PAUSED"}))
    for _ in range(700):
        engine.resume("q", "me")
        engine.server.call("XADD", engine.keys.events(), "*", "e", "TASK_QUEUED\tt\tq\ty\t0\t\t")
    engine.pause("q", "me")
    history = EventHistory(engine.server, engine.settings)
    page, pages = history.after(EventId.parse("0"), rare, 10), 1
    while page.more:
        assert page.events == []
        page, pages = history.after(page.last, rare, 10), pages + 1
    assert kinds(page.events) == ["QUEUE_PAUSED"]
    assert 2 <= pages <= 4


# --- the buffer of a subscriber ---------------------------------------------------------------------------------------


def test_a_full_buffer_loses_its_oldest_events_but_no_end_of_a_task() -> None:
    buffer = Buffer(4)
    ends = ["TASK_STARTED", "TASK_SUCCEEDED", "TASK_PROGRESS", "TASK_FAILED", "TASK_QUEUED", "TASK_EXPIRED"]
    assert buffer.add([an_event(number, kind) for number, kind in enumerate(ends)])
    taken = buffer.take(100)
    assert taken[0] == Dropped(2)
    assert kinds(taken[1:]) == ["TASK_SUCCEEDED", "TASK_FAILED", "TASK_QUEUED", "TASK_EXPIRED"]
    assert not buffer
    assert buffer.take(100) == []


def test_a_buffer_full_of_ends_drops_the_rest_and_gives_up_at_one_more_end() -> None:
    buffer = Buffer(3)
    assert buffer.add([an_event(number, "TASK_SUCCEEDED") for number in range(3)])
    assert buffer.add([an_event(4, "TASK_QUEUED"), an_event(5, "TASK_QUEUED")])
    assert not buffer.add([an_event(6, "TASK_SUCCEEDED")])
    assert kinds(buffer.take(2)) == ["dropped", "TASK_SUCCEEDED"]
    assert kinds(buffer.take(9)) == ["TASK_SUCCEEDED", "TASK_SUCCEEDED"]


# --- the reader -------------------------------------------------------------------------------------------------------


def test_subscribers_get_what_they_asked_for_in_order_and_once(engine: Engine, reader: EventReader) -> None:
    first = engine.submit(queue="a")
    ends = EventFilter(types=TERMINAL_TYPES)
    with (
        reader.subscribe() as everything,
        reader.subscribe(EventFilter(queue="b")) as queue_b,
        reader.subscribe(ends) as ended,
        reader.subscribe(EventFilter(task_id=first)) as one_task,
    ):
        engine.submit(queue="b")
        engine.commit(engine.claim_one(queue="a"))
        engine.commit(engine.claim_one(queue="b"))
        assert kinds(drain(everything, 5)) == [
            *("TASK_QUEUED", "TASK_STARTED", "TASK_SUCCEEDED", "TASK_STARTED", "TASK_SUCCEEDED")
        ]
        assert kinds(drain(queue_b, 3)) == ["TASK_QUEUED", "TASK_STARTED", "TASK_SUCCEEDED"]
        assert kinds(drain(ended, 2)) == ["TASK_SUCCEEDED"] * 2
        assert kinds(drain(one_task, 2)) == ["TASK_STARTED", "TASK_SUCCEEDED"]
        assert everything.take() == queue_b.take() == ended.take() == one_task.take() == []


@pytest.mark.usefixtures("bounded_keys")
def test_an_event_arrives_at_once_and_one_connection_serves_all(engine: Engine, reader: EventReader) -> None:
    subscriptions = [reader.subscribe() for _ in range(50)]
    subscriptions[0].get(0.1)
    info = engine.server.call("INFO", "clients").decode()
    assert "blocked_clients:1\r" in info
    lags = []
    for _ in range(20):
        began = time.monotonic()
        engine.submit()
        for one in subscriptions:
            assert len(one.get(5)) == 1
        lags.append(time.monotonic() - began)
    assert sorted(lags)[10] < 0.1
    for one in subscriptions:
        one.close()


def test_the_reader_comes_with_the_first_subscriber_and_goes_after_the_last(
    engine: Engine, reader: EventReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "LINGER_S", 0.0)
    monkeypatch.setattr(reader_module, "BLOCK_S", 0.2)
    assert not reading()
    for _ in range(2):
        with reader.subscribe() as subscription:
            assert reading()
            engine.submit()
            assert kinds(subscription.get(5)) == ["TASK_QUEUED"]
        wait_until(lambda: not reading(), what="the end of the reader")


def test_a_replay_goes_over_into_what_happens_without_loss_or_repeat(engine: Engine, reader: EventReader) -> None:
    """Tasks are submitted all the time, in batches, while several subscribers begin at various places."""
    stop = threading.Event()
    submitted: list[str] = []

    def submit() -> None:
        while not stop.is_set() and len(submitted) < 6000:
            submitted.extend(engine.submit_many(3))

    feeder = threading.Thread(target=submit)
    feeder.start()
    try:
        wait_until(lambda: len(submitted) > 300, what="some history")
        start = EventId.parse("0")
        middle = reader.history.after(start, EventFilter(), 100).last
        subscriptions = [(0, reader.subscribe(since=start)), (100, reader.subscribe(since=middle))]
        seen: list[list[str]] = [[], []]
        for _ in range(20):
            for number, (_, one) in enumerate(subscriptions):
                seen[number] += [item.task_id for item in one.get(1.0, limit=50) if isinstance(item, Event)]
    finally:
        stop.set()
        feeder.join()
    for number, (begin, one) in enumerate(subscriptions):
        left = len(submitted) - begin - len(seen[number])
        seen[number] += [item.task_id for item in drain(one, left) if isinstance(item, Event)]
        assert seen[number] == submitted[begin:]
        assert one.take() == []
        one.close()


def test_ws_02_a_subscriber_that_does_not_take_holds_a_bounded_number_and_delays_nobody(
    engine: Engine, reader: EventReader
) -> None:
    with reader.subscribe() as slow, reader.subscribe() as quick:
        for _ in range(15):
            engine.submit_many(200)
            items = drain(quick, 200)
            assert kinds(items) == ["TASK_QUEUED"] * 200
        items = drain(slow, 1001)
        assert items[0] == Dropped(2000)
        assert len(items) == 1001
        for _ in range(15):
            engine.submit_many(100)
            for claim in engine.claim(limit=100):
                engine.commit(claim)
            drain(quick, 300)
        with pytest.raises(SubscriptionEnded, match="overflow"):
            slow.take()
        assert not quick.take()


def test_those_who_wait_are_woken_when_there_is_something_and_not_before(engine: Engine, reader: EventReader) -> None:
    woken = threading.Semaphore(0)
    with reader.subscribe(EventFilter(queue="a"), on_ready=woken.release) as subscription:
        engine.submit(queue="b")
        engine.submit(queue="a")
        assert woken.acquire(timeout=5)
        assert kinds(subscription.take()) == ["TASK_QUEUED"]
        assert not woken.acquire(timeout=0.05)
        engine.submit(queue="a")
        assert woken.acquire(timeout=5)


def test_closing_the_reader_ends_every_wait_and_refuses_new_ones(engine: Engine) -> None:
    reader = EventReader(engine.server, engine.settings)
    subscription = reader.subscribe()
    failures: list[str] = []

    def wait() -> None:
        try:
            subscription.get(30)
        except SubscriptionEnded as error:
            failures.append(error.reason)

    waiter = threading.Thread(target=wait)
    waiter.start()
    began = time.monotonic()
    reader.close()
    waiter.join(5)
    assert failures == ["closed"]
    assert time.monotonic() - began < 2
    assert not reading()
    with pytest.raises(SubscriptionEnded, match="closed"):
        reader.subscribe()


# --- outages ----------------------------------------------------------------------------------------------------------


def test_after_an_outage_events_go_on_and_it_was_said_once(
    server_factory: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    process = server_factory("valkey", aof=True, options=("--appendfsync", "always"))
    server = Server.connect(process.url)
    engine = Engine(server)
    reader = EventReader(server, engine.settings)
    caplog.set_level(logging.INFO, logger="dtq.events")
    with reader.subscribe() as subscription:
        engine.submit()
        assert len(subscription.get(5)) == 1
        process.kill()
        time.sleep(0.5)
        process.start()
        wait_until(lambda: answers(server), what="the server")
        later = engine.submit()
        items = drain(subscription, 1)
        assert [item.task_id for item in items if isinstance(item, Event)] == [later]
        assert len(items) == 1
    reader.close()
    server.close()
    said = [record.getMessage() for record in caplog.records if record.name == "dtq.events.reader"]
    assert len(said) == 2
    assert "cannot be read" in said[0]
    assert "read again after" in said[1]


def test_events_that_a_restart_has_lost_are_a_gap(server_factory: ServerFactory) -> None:
    """Without persistence everything is gone; the new stream goes on, perhaps at lower ids."""
    process = server_factory("valkey")
    server = Server.connect(process.url)
    engine = Engine(server)
    reader = EventReader(server, engine.settings)
    with reader.subscribe() as subscription:
        server.call("XADD", engine.keys.events(), "99999999999999-0", "e", "TASK_QUEUED\tt\tq\ty\t0\t\t")
        assert len(subscription.get(5)) == 1
        process.kill()
        process.start()
        assert drain(subscription, 1) == [Gap()]
        wait_until(lambda: answers(server), what="the server")
        later = engine.submit()
        assert [item.task_id for item in drain(subscription, 1) if isinstance(item, Event)] == [later]
    reader.close()
    server.close()


def test_what_was_trimmed_before_it_was_read_is_a_gap(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader is held up while more happens than the stream holds."""
    engine = Engine(server, events_maxlen=100)
    reader = EventReader(server, engine.settings)
    engine.submit()
    monkeypatch.setattr(reader_module, "ENTRIES_A_READ", 50)
    with reader.subscribe() as subscription:
        engine.submit()
        assert len(subscription.get(5)) == 1
        subscription._changed.acquire()  # whoever hands out waits for this
        try:
            for _ in range(400):
                engine.pause("q", "me")
                engine.resume("q", "me")
        finally:
            subscription._changed.release()
        items = drain(subscription, 10_000, timeout_s=1)
    assert Gap() in items
    assert items.count(Gap()) <= 2
    assert kinds(items)[-1] == "QUEUE_RESUMED"
    reader.close()


def test_a_reader_in_memory_works_like_any_other(memory_server: Server) -> None:
    engine = Engine(memory_server)
    reader = EventReader(memory_server, engine.settings)
    with reader.subscribe() as subscription:
        engine.submit()
        assert kinds(subscription.get(5)) == ["TASK_QUEUED"]
    reader.close()
    assert not reading()
