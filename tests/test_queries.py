"""What can be asked: one task, lists that neither skip nor repeat, exact counts, queues, workers."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dtq.errors import InvalidTask, NewerSchema, TaskNotFound, Undecodable
from dtq.keys import GROUP
from dtq.model import HandlerPolicy, Task
from dtq.queries import MAX_PAGE, MOST_LOOKED_AT
from dtq.redisio import Server
from dtq.states import Status
from dtq.taskfilter import TaskFilter
from tests.support.engine import Engine, Kind, outcome
from tests.support.invariants import check_invariants

S = Status


@pytest.fixture
def engine(server: Server) -> Engine:
    return Engine(server)


def pages(engine: Engine, wanted: TaskFilter, limit: int) -> list[list[Task]]:
    found, cursor = [], None
    while True:
        page = engine.queries.tasks(wanted, limit, cursor)
        found.append(list(page.tasks))
        assert len(found) < 2000
        if page.next_cursor is None:
            return found
        cursor = page.next_cursor


def listed(engine: Engine, limit: int = 50, **wanted: object) -> list[str]:
    """Ids of all pages."""
    return [task.task_id for page in pages(engine, TaskFilter(**wanted), limit) for task in page]  # type: ignore[arg-type]


# --- one task ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", Status)
def test_a_task_can_be_looked_at_in_every_status(any_server: Server, status: Status) -> None:
    engine = Engine(any_server)
    seeded = engine.seed(
        status, payload={"a": [1]}, tags=["red"], metadata={"k": "v"}, idempotency_key="key", priority=7
    )
    task = engine.task(seeded.task_id)
    assert (task.status, task.queue, task.priority, task.task_type) == (status, seeded.queue, 7, "echo")
    assert (task.payload, list(task.tags), task.idempotency_key) == ({"a": [1]}, ["red"], "key")
    assert task.metadata["k"] == "v"
    assert abs(task.created_at - time.time()) < 60
    assert task.terminal == (task.finished_at is not None)
    assert engine.queries.status(seeded.task_id) is status
    assert engine.queries.counts(seeded.queue) == dict.fromkeys(Status, 0) | {status: 1}
    assert task.as_json()["status"] == status.value
    assert "payload" not in task.as_json(brief=True)


def test_what_is_not_there_is_not_found(engine: Engine) -> None:
    for look in (engine.queries.task, engine.queries.status):
        with pytest.raises(TaskNotFound):
            look("f" * 32)


def test_records_that_cannot_be_read_say_so_and_lists_pass_over_them(engine: Engine) -> None:
    newer, spoilt, bad_json, good = engine.submit_many(4)
    engine.server.call("HSET", engine.keys.task(newer), "v", 9)
    engine.server.call("HSET", engine.keys.task(spoilt), "status", "asleep")
    engine.server.call("HSET", engine.keys.task(bad_json), "extra", b"{\xff")
    with pytest.raises(NewerSchema):
        engine.task(newer)
    for task_id in (spoilt, bad_json):
        with pytest.raises(Undecodable):
            engine.task(task_id)
    with pytest.raises(Undecodable):
        engine.queries.status(spoilt)
    assert listed(engine) == [good]
    engine.server.call("SET", engine.keys.payload(good), "{cut")
    with pytest.raises(Undecodable):
        engine.task(good)


def test_the_task_that_a_submission_answers_is_the_task_that_is_stored(any_server: Server) -> None:
    engine = Engine(any_server)
    for fields in (
        {},
        {"delay_seconds": 1.5, "tags": ["a"], "timeout_ms": 5, "max_attempts": 2, "priority": 0},
        {"run_at": "2001-01-01T00:00:00Z"},
        {"run_at": "2999-01-01T00:00:00+02:00", "idempotency_key": "k", "metadata": {"ttl_seconds": 5}},
    ):
        answer = engine.try_submit(**fields)
        assert isinstance(answer, Task)
        stored = engine.task(answer.task_id)
        assert answer.available_at is not None
        assert stored.available_at is not None
        assert abs(answer.available_at - stored.available_at) < 0.0011, "the script cuts to whole milliseconds"
        told, found = answer.as_json(), stored.as_json()
        assert told.pop("available_at")
        assert found.pop("available_at")
        assert told == found


# --- lists ------------------------------------------------------------------------------------------------------------


def test_a_thousand_tasks_of_one_batch_are_paged_each_once(any_server: Server) -> None:
    """A hundred of them have the same time of creation, that of their script."""
    engine = Engine(any_server)
    expected = engine.submit_many(1000)
    found = listed(engine, 37)
    assert sorted(found) == sorted(expected)
    assert len({engine.field(task_id, "created") for task_id in expected[:100]}) == 1
    created = [int(engine.field(task_id, "created") or 0) for task_id in found]
    assert created == sorted(created, reverse=True), "newest first"
    assert listed(engine, MAX_PAGE) == found
    assert listed(engine, 10_000) == found, "a page is bounded, whoever asks"


def test_paging_neither_skips_nor_repeats_while_tasks_move(server: Server) -> None:
    engine = Engine(server)
    rng = random.Random(5)
    engine.register("w1")
    expected = [engine.submit(queue=rng.choice("abc"), priority=rng.randrange(10)) for _ in range(300)]
    kinds: tuple[Kind, ...] = ("succeed", "retry", "dead", "snooze")
    seen: list[str] = []
    cursor = None
    while True:
        page = engine.queries.tasks(TaskFilter(), 20, cursor)
        seen += [task.task_id for task in page.tasks]
        cursor = page.next_cursor
        if cursor is None:
            break
        claims = engine.claim("w1", 15, ["c", "a", "b"])
        engine.broker.commit("w1", [outcome(claim, rng.choice(kinds), delay_ms=1000) for claim in claims])
        engine.promote()
        engine.submit(queue="a")  # what is created meanwhile stands before the pages that were seen
    assert seen == expected[::-1]


def test_a_list_over_hundreds_of_queues_is_made_in_several_short_looks(server: Server) -> None:
    engine = Engine(server)
    rng = random.Random(3)
    queues = [f"q{number:03}" for number in range(120)]
    expected = [engine.submit(queue=rng.choice(queues)) for _ in range(400)]
    assert listed(engine, 30) == expected[::-1]
    assert listed(engine, status=S.QUEUED) == expected[::-1]
    assert listed(engine, status=S.RUNNING) == []


def test_filters_narrow_a_list(engine: Engine) -> None:
    red = engine.submit(queue="a", tags=["red", "warm"])
    blue = engine.submit(queue="a", tags=["blue"], task_type="paint")
    done = engine.seed(S.SUCCEEDED, "b", tags=["red"]).task_id
    assert listed(engine, queue="a") == [blue, red]
    assert listed(engine, status=S.SUCCEEDED) == [done]
    assert listed(engine, queue="a", status=S.SUCCEEDED) == []
    assert listed(engine, task_type="paint") == [blue]
    assert listed(engine, tag="red") == [done, red]
    assert listed(engine, tag="red", queue="a", status=S.QUEUED, task_type="echo") == [red]
    assert listed(engine, tag="red", limit=1) == [done, red]
    assert listed(engine, queue="never-used") == []
    assert engine.queries.tasks(TaskFilter(queue="no such name!")).tasks == []


def test_times_of_creation_bound_a_list_exactly(engine: Engine) -> None:
    old, middle, new = (engine.submit() for _ in range(3))
    times = {task_id: int(engine.field(task_id, "created") or 0) / 1e6 for task_id in (old, middle, new)}
    assert listed(engine, created_after=times[old]) == [new, middle]
    assert listed(engine, created_before=times[new]) == [middle, old]
    assert listed(engine, created_after=times[old], created_before=times[new], limit=1) == [middle]
    assert listed(engine, created_after=times[new]) == []
    assert listed(engine, created_before=0.0) == []
    assert listed(engine, created_before=-5.0) == []
    assert listed(engine, created_after=-5.0) == [new, middle, old]


def test_a_filter_without_an_index_looks_at_a_bounded_number_and_goes_on(engine: Engine) -> None:
    engine.submit(task_type="needle")
    for _ in range(2):
        engine.submit_many(700)
    page = engine.queries.tasks(TaskFilter(task_type="needle"), 200)
    assert (page.tasks, page.looked_at) == ([], MOST_LOOKED_AT)
    assert page.next_cursor is not None
    page = engine.queries.tasks(TaskFilter(task_type="needle"), 200, page.next_cursor)
    assert len(page.tasks) == 1


def test_an_empty_list_has_one_page(engine: Engine) -> None:
    assert pages(engine, TaskFilter(), 50) == [[]]
    engine.submit_many(2)
    assert [len(page) for page in pages(engine, TaskFilter(), 1)] == [1, 1, 0], "the end is only seen past it"


@pytest.mark.parametrize(
    "cursor",
    ["", "-", "1", "1-", "-a", "x-y", "1-a b", "1-a-b", "١-a", "1.5-a", "1" * 64 + "-a", "1-*", "1-a\n", "+inf-a"],
)
def test_a_cursor_that_is_none_is_refused(engine: Engine, cursor: str) -> None:
    engine.submit()
    with pytest.raises(InvalidTask) as error:
        engine.queries.tasks(TaskFilter(), 10, cursor)
    assert error.value.context["errors"][0]["pointer"] == "/cursor"


@settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(cursor=st.one_of(st.text(max_size=70), st.from_regex(r"\d{1,40}-\w{1,30}", fullmatch=True)))
def test_no_cursor_breaks_a_list(engine: Engine, cursor: str) -> None:
    try:
        page = engine.queries.tasks(TaskFilter(), 10, cursor)
    except InvalidTask:
        return
    assert len(page.tasks) <= 10


# --- queues -----------------------------------------------------------------------------------------------------------


def test_redis_20_what_waits_is_counted_exactly_on_every_server(any_server: Server) -> None:
    engine = Engine(any_server)
    ids = engine.submit_many(1000)
    for task_id in ids[100:400]:
        engine.cancel(task_id)
    claims = engine.claim("w1", 100) + engine.claim("w1", 100)
    assert len(claims) == 200
    info = engine.queries.queue("default")
    assert info.depth == 700
    assert info.waiting_by_priority == dict.fromkeys(range(10), 0) | {5: 500}
    assert (info.counts[S.QUEUED], info.counts[S.RUNNING], info.counts[S.CANCELLED]) == (500, 200, 300)
    engine.broker.hand_back("w1", claims[:50])
    info = engine.queries.queue("default")
    assert (info.depth, info.waiting_by_priority[5]) == (700, 550), "what is handed back waits too"
    assert info.counts == engine.queries.counts("default")


def test_prio_01_the_oldest_waiting_task_of_each_band_is_seen_behind_any_number_that_run(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.submit_many(150, priority=9)
    engine.submit(priority=0)
    engine.claim("w1", 100)
    engine.claim("w1", 50)
    engine.submit(priority=9)
    time.sleep(0.02)
    info = engine.queries.queue("default")
    ages = info.oldest_waiting_by_priority_s
    assert {band for band, age in ages.items() if age is not None} == {0, 9}
    assert 0.02 <= (ages[9] or 0) <= (ages[0] or 0) < 60
    assert info.oldest_waiting_s == ages[0]


def test_what_was_handed_back_counts_as_the_oldest_when_it_is(any_server: Server) -> None:
    engine = Engine(any_server)
    assert engine.queries.queue("default").oldest_waiting_s is None
    engine.submit()
    claim = engine.claim_one()
    assert engine.queries.queue("default").oldest_waiting_s is None, "it runs"
    time.sleep(0.02)
    engine.submit()
    younger = engine.queries.queue("default").oldest_waiting_s
    engine.broker.hand_back("w1", [claim])
    older = engine.queries.queue("default").oldest_waiting_s
    assert younger is not None
    assert older is not None
    assert older >= younger + 0.02


def test_a_retry_at_the_tail_does_not_hide_behind_a_forged_ticket(any_server: Server) -> None:
    engine = Engine(any_server)
    any_server.call("XADD", engine.keys.stream("default", 5), "*", "junk", 1)
    engine.submit()
    assert engine.queries.queue("default").oldest_waiting_s is not None
    any_server.call("HSET", engine.keys.task(listed(engine)[0]), "created", "soon")
    assert engine.queries.queue("default").oldest_waiting_s is None, "nobody knows since when it waits"


def test_a_group_of_somebody_else_does_not_matter(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.submit()
    any_server.call("XGROUP", "CREATE", engine.keys.stream("default", 5), "another", "$")
    assert engine.queries.queue("default").oldest_waiting_s is not None
    engine.claim()
    info = engine.queries.queue("default")
    assert (info.oldest_waiting_s, info.waiting_by_priority[5]) == (None, 0)
    any_server.call("XGROUP", "DESTROY", engine.keys.stream("default", 5), GROUP)
    assert engine.queries.queue("default").depth == 1


def test_queues_are_listed_by_name_paused_or_not(engine: Engine) -> None:
    for number in range(60):
        engine.submit(queue=f"q{number:02}")
    engine.pause("q07", "Ann", "repairs")
    infos = engine.queries.queues()
    assert [info.queue for info in infos] == [f"q{number:02}" for number in range(60)]
    assert [info.queue for info in infos if info.paused] == ["q07"]
    shown = infos[7].as_json()
    assert (shown["paused"], shown["pause"]["by"], shown["depth"], shown["counts"]["queued"]) == (True, "Ann", 1, 1)
    assert shown["waiting_by_priority"]["5"] == 1
    assert shown["oldest_waiting_seconds"] == shown["oldest_waiting_seconds_by_priority"]["5"]


def test_redis_21_what_is_finished_leaves_nothing_in_the_streams(server: Server) -> None:
    """Ten long-lived tasks pin at most the nodes that they stand in."""
    engine = Engine(server)
    pinned = []
    for band in range(10):
        engine.submit(priority=band)
        pinned += engine.claim("long", 1)
        for _ in range(5):
            engine.submit_many(100, priority=band)
            engine.broker.commit("w1", [outcome(claim) for claim in engine.claim("w1", 100)])
    assert engine.depth() == len(pinned) == 10
    usage = sum(server.call("MEMORY", "USAGE", engine.keys.stream("default", band)) for band in range(10))
    assert usage < 200_000
    engine.broker.commit("long", [outcome(claim) for claim in pinned])
    assert engine.depth() == 0


# --- workers ----------------------------------------------------------------------------------------------------------


def test_workers_and_their_handlers_are_told_as_they_were_published(any_server: Server) -> None:
    engine = Engine(any_server)
    schema = {"type": "object", "required": ["ü"]}
    engine.register("b", queues=["x", "y"], handlers={"echo": HandlerPolicy(3, None, schema)})
    engine.register("a", lease_s=2.5, handlers={"sleep": HandlerPolicy(None, 5, None)})
    one, other = engine.queries.workers()
    assert (one.worker_id, one.lease_s, one.task_types) == ("a", 2.5, ("sleep",))
    assert (other.worker_id, other.queues, other.state, other.concurrency) == ("b", ("x", "y"), "running", 4)
    assert abs(other.heartbeat_at - time.time()) < 60
    assert engine.queries.handlers() == {
        "echo": HandlerPolicy(3, None, schema),
        "sleep": HandlerPolicy(None, 5, None),
    }


def test_a_worker_record_of_another_version_breaks_no_list(engine: Engine) -> None:
    engine.register("good", handlers={"echo": HandlerPolicy(1, 2, None)})
    for name, handlers in (("odd", '{"x":{}}'), ("cut", "{"), ("list", "[1]"), ("bytes", b"\xff")):
        engine.register(name, handlers={"y": HandlerPolicy(1, 2, None)})
        engine.server.call("HSET", engine.keys.worker(name), "handlers", handlers, "status", "?")
    engine.server.call("ZADD", engine.keys.workers(), 1, "gone")
    assert [worker.worker_id for worker in engine.queries.workers()] == ["good"]
    assert set(engine.queries.handlers()) == {"echo"}


def test_without_workers_there_is_nobody_and_nothing(engine: Engine) -> None:
    assert engine.queries.workers() == []
    assert engine.queries.handlers() == {}
    assert engine.queries.leader() is None
    assert engine.queries.queues() == []
    assert engine.queries.script_works()
    check_invariants(engine.server, engine.keys, engine.settings)


def test_progress_is_seen_while_the_task_runs(any_server: Server) -> None:
    engine = Engine(any_server)
    engine.submit()
    claim = engine.claim_one()
    assert engine.broker.progress("w1", claim, 0.25, "a\tquarter\n" + "x" * 500)
    assert engine.broker.progress("w1", claim, 0.25, "a\tquarter\n" + "x" * 500), "no news, but no failure"
    task = engine.task(claim.task_id)
    assert task.progress is not None
    assert task.progress["fraction"] == 0.25
    assert task.progress["message"].startswith("a quarter x")
    assert len(task.progress["message"]) == 200
    assert engine.kinds(claim.task_id).count("TASK_PROGRESS") == 1
    with pytest.raises(ValueError, match="JSON"):
        engine.broker.progress("w1", claim, float("nan"), "")


def test_a_bell_is_rung_by_hand(engine: Engine) -> None:
    engine.broker.wake("default")
    assert engine.server.call("XLEN", engine.keys.wake("default")) == 1
