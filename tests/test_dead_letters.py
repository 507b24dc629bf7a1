"""Looking through dead letters: newest first, by a filter, by their task, and counted."""

from __future__ import annotations

from typing import Any

import pytest

from dtq.deadletters import DeadFilter, DeadLetter
from dtq.errors import DeadLetterNotFound, InvalidTask, TaskNotFound
from dtq.model import ErrorInfo
from dtq.redisio import Server
from dtq.states import Status
from tests.support.engine import Engine

S = Status


def every(engine: Engine, limit: int = 7, **wanted: Any) -> list[DeadLetter]:
    """All pages of a list."""
    found: list[DeadLetter] = []
    cursor = None
    while True:
        page = engine.queries.dead_letters.page(DeadFilter(**wanted), limit, cursor)
        assert len(page.letters) <= limit
        found += page.letters
        cursor = page.next_cursor
        if cursor is None:
            return found


def ids(letters: list[DeadLetter]) -> list[str]:
    return [letter.task_id for letter in letters]


def test_dead_letters_are_listed_newest_first_in_pages_that_neither_skip_nor_repeat(any_server: Server) -> None:
    engine = Engine(any_server)
    buried = engine.bury(30)
    assert ids(every(engine)) == buried[::-1]
    first = engine.queries.dead_letters.page(DeadFilter(), 10, None)
    engine.bury(5)
    engine.requeue(buried[-1])
    engine.requeue(buried[15])
    second = engine.queries.dead_letters.page(DeadFilter(), 10, first.next_cursor)
    assert ids([*first.letters, *second.letters]) == [i for i in buried[::-1] if i != buried[15]][:20]
    letter = first.letters[0]
    assert letter.as_json() == {
        "task_id": buried[-1],
        "task_type": "echo",
        "queue": "default",
        "reason": "permanent",
        "attempts": 1,
        "worker_id": "w1",
        "error": {"class": "ValueError", "message": "it did not work"},
        "dead_at": letter.as_json()["dead_at"],
    }


def test_every_filter_leaves_out_what_it_says(server: Server) -> None:
    engine = Engine(server)
    (mail,) = engine.bury(1, "mail", reason="exhausted", error=ErrorInfo("OSError", 'No route to "host" äÖ\n2'))
    (other,) = engine.bury(1, "other", reason="permanent", error=ErrorInfo("ValueError", "100 % wrong"))
    engine.submit(queue="odd", task_type="odd.type")
    claim = engine.claim_one("w1", "odd")
    engine.commit(claim, "dead", error=ErrorInfo("OSErrorToo", "class is message"))
    odd = claim.task_id
    assert ids(every(engine)) == [odd, other, mail]
    wanted: list[tuple[dict[str, Any], list[str]]] = [
        ({"queue": "mail"}, [mail]),
        ({"task_type": "odd.type"}, [odd]),
        ({"reason": "exhausted"}, [mail]),
        ({"error_class": "OSError"}, [mail]),
        ({"error": "oserror"}, [odd, mail]),
        ({"error": 'TO "host"'}, [mail]),
        ({"error": "äÖ\n"}, [mail]),
        ({"error": "100 %"}, [other]),
        ({"error": "message"}, [odd]),
        ({"error": ".*"}, []),
        ({"queue": "mail", "reason": "permanent"}, []),
    ]
    for fields, expected in wanted:
        assert ids(every(engine, **fields)) == expected, fields
        number, samples = engine.queries.dead_letters.count(DeadFilter(**fields), 5)
        assert (number, ids(samples)) == (len(expected), expected), fields
    at = every(engine)[1].dead_at
    assert ids(every(engine, since=at - 0.0005, until=at)) == ids([one for one in every(engine) if one.dead_at == at])
    assert mail in ids(every(engine, until=at))
    assert odd in ids(every(engine, since=at))
    assert every(engine, since=at + 60) == every(engine, until=at - 60) == []


def test_a_page_of_a_rare_kind_looks_at_a_bounded_number_and_says_where_to_go_on(server: Server) -> None:
    engine = Engine(server)
    rare = engine.bury(1, "rare")
    fields = server.call("XRANGE", engine.keys.dead_letter(), "-", "+")[0][1]
    common = [b"common" if value == b"rare" else value for value in fields]
    for _ in range(5):
        server.pipeline([("XADD", engine.keys.dead_letter(), "*", *common)] * 500)
    page = engine.queries.dead_letters.page(DeadFilter(queue="rare"), 10, None)
    assert page.letters == []
    assert page.next_cursor is not None
    rest = engine.queries.dead_letters.page(DeadFilter(queue="rare"), 10, page.next_cursor)
    assert (ids(list(rest.letters)), rest.next_cursor) == (rare, None)
    assert engine.queries.dead_letters.count(DeadFilter(queue="rare"))[0] == 1
    assert engine.queries.dead_letters.size() == 2501


def test_one_is_found_by_its_task_in_two_calls_however_many_there_are(server: Server) -> None:
    engine = Engine(server)
    buried = engine.bury(200)
    server.call("CONFIG", "RESETSTAT")
    letter = engine.queries.dead_letters.of_task(buried[17])
    assert (letter.task_id, letter.attempts, letter.reason) == (buried[17], 1, "permanent")
    stats = server.call("INFO", "commandstats").decode()
    assert "cmdstat_hmget:calls=1," in stats
    assert "cmdstat_xrange:calls=1," in stats
    waiting = engine.submit()
    with pytest.raises(DeadLetterNotFound, match="queued"):
        engine.queries.dead_letters.of_task(waiting)
    with pytest.raises(TaskNotFound):
        engine.queries.dead_letters.of_task("f" * 32)
    server.call("HSET", engine.keys.task(buried[3]), "dead", "nonsense")
    with pytest.raises(DeadLetterNotFound):
        engine.queries.dead_letters.of_task(buried[3])


def test_entries_that_are_no_letters_are_not_shown_and_spoilt_ones_as_far_as_they_can_be_read(server: Server) -> None:
    engine = Engine(server)
    stream = engine.keys.dead_letter()
    server.call("XADD", stream, "*", "junk", "x")
    names = ("id", "queue", "type", "reason", "attempts", "worker", "error")
    spoilt = [part for name in names for part in (name, b"\xff")]
    server.call("XADD", stream, "*", *spoilt)
    (letter,) = every(engine)
    assert (letter.queue, letter.attempts, letter.error) == ("\ufffd", 0, None)
    assert every(engine, error="x") == []
    with pytest.raises(InvalidTask, match="cursor"):
        engine.queries.dead_letters.page(DeadFilter(), 5, "0")


def test_a_discarded_letter_is_gone_and_its_task_stays_for_its_retention(any_server: Server, wait_until: Any) -> None:
    engine = Engine(any_server, task_retention_s=1, idem_ttl_s=1)
    task_id = engine.bury(1)[0]
    engine.discard(task_id)
    task = engine.task(task_id)
    assert (task.status, task.discarded, task.reason) == (S.FAILED, True, "permanent")
    assert every(engine) == []
    assert engine.kinds(task_id)[-1] == "DEAD_LETTER_DISCARDED"
    assert engine.totals()["echo:discarded"] == 1
    counts = engine.queries.counts("default")
    assert (counts[S.DEAD_LETTERED], counts[S.FAILED]) == (0, 1)
    wait_until(lambda: engine.broker.upkeep.sweep() == 1, what="the end of its retention")
    assert engine.queries.counts("default")[S.FAILED] == 0
    with pytest.raises(TaskNotFound):
        engine.task(task_id)


def test_letters_and_ended_tasks_of_a_newer_dtq_are_neither_evicted_nor_swept(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(server, dlq_maxlen=3)
    newer, *others = engine.bury(3)
    done = engine.seed(S.SUCCEEDED).task_id
    for task_id in (newer, done):
        server.call("HSET", engine.keys.task(task_id), "v", 99)
    more = engine.bury(2)
    assert ids(every(engine)) == [*more[::-1], newer], "the oldest of our own went in its place"
    assert [engine.task(task_id).status for task_id in others] == [S.FAILED] * 2
    for member in server.call("ZRANGE", engine.keys.finished(), 0, -1):
        server.call("ZADD", engine.keys.finished(), 1, member)
    engine.broker.upkeep.sweep()
    assert server.call("EXISTS", engine.keys.task(done)) == 1
    assert server.call("ZCARD", engine.keys.finished()) == 1
    assert "newer" in caplog.text
    caplog.clear()
    engine.broker.upkeep.sweep()
    assert "newer" not in caplog.text, "looked at again in an hour"
