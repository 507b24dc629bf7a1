"""One key, one task: while it runs, after its end, when it comes back from the dead letters, and after it is gone."""

from __future__ import annotations

import threading

import pytest

from dtq.broker import Replay
from dtq.errors import IdempotencyInProgress, IdempotencyKeyReused, QueueFull, RedisUnavailable
from dtq.keys import Keys
from dtq.model import Task
from dtq.redisio import Server
from dtq.states import Status
from tests.conftest import ProxyFactory
from tests.support.dump import dump
from tests.support.engine import Engine
from tests.support.invariants import check_invariants

S = Status


@pytest.fixture
def engine(server: Server) -> Engine:
    return Engine(server)


def in_progress(answer: object) -> str:
    assert isinstance(answer, IdempotencyInProgress), answer
    return str(answer.context["task_id"])


def replayed(answer: object) -> str:
    assert isinstance(answer, Replay), answer
    return answer.task_id


@pytest.mark.parametrize("status", [S.QUEUED, S.PENDING, S.RUNNING, S.RETRYING])
def test_while_the_first_task_has_not_ended_the_key_names_it(any_server: Server, status: Status) -> None:
    engine = Engine(any_server)
    delay = {"delay_seconds": 3600} if status is S.PENDING else {}
    seeded = engine.seed(status, "default", idempotency_key="k")
    before = dump(any_server)
    assert in_progress(engine.try_submit(idempotency_key="k", **delay)) == seeded.task_id
    assert dump(any_server) == before


@pytest.mark.parametrize("status", [S.SUCCEEDED, S.FAILED, S.DEAD_LETTERED, S.CANCELLED, S.EXPIRED])
def test_after_its_end_the_key_answers_with_the_task_whatever_the_depth(any_server: Server, status: Status) -> None:
    engine = Engine(any_server, max_queue_depth=1)
    seeded = engine.seed(status, "default", idempotency_key="k")
    engine.submit()
    assert isinstance(engine.try_submit(), QueueFull)
    ttl = {"metadata": {"ttl_seconds": 0.001}} if status is S.EXPIRED else {}
    assert replayed(engine.try_submit(idempotency_key="k", **ttl)) == seeded.task_id


def test_idem_01_another_body_under_the_key_is_refused_before_anything_else_is_looked_at(engine: Engine) -> None:
    task_id = engine.submit(idempotency_key="k", payload={"a": 1, "b": [1, {}]})
    for other in (
        {"payload": {"a": 2, "b": [1, {}]}},
        {"payload": {"a": 1, "b": [1, {}]}, "task_type": "another"},
        {"payload": {"a": 1, "b": [1, {}]}, "priority": 6},
        {"payload": {"a": 1, "b": [1, {}]}, "delay_seconds": 1},
    ):
        answer = engine.try_submit(idempotency_key="k", **other)
        assert isinstance(answer, IdempotencyKeyReused)
        assert answer.context["task_id"] == task_id
    same = {"payload": {"b": [1, {}], "a": 1}, "priority": 5, "metadata": {}}
    assert in_progress(engine.try_submit(idempotency_key="k", **same)) == task_id
    engine.commit(engine.claim_one())
    assert isinstance(engine.try_submit(idempotency_key="k"), IdempotencyKeyReused)
    assert replayed(engine.try_submit(idempotency_key="k", **same)) == task_id


def test_idem_01_another_queue_is_another_scope(engine: Engine) -> None:
    assert engine.submit(idempotency_key="k") != engine.submit(idempotency_key="k", queue="other")


def test_idem_02_fifty_clients_racing_on_one_key_create_one_task(server: Server) -> None:
    shared = Server.connect(server.safe_url, max_connections=50, timeout_s=20)
    engine = Engine(shared)
    answers: list[object] = []
    ready = threading.Barrier(50)

    def client() -> None:
        submission = engine.submission(idempotency_key="k", payload={"same": True})
        ready.wait(20)
        answers.append(engine.offer(submission)[0])

    threads = [threading.Thread(target=client) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    (created,) = [answer for answer in answers if isinstance(answer, Task)]
    assert {in_progress(answer) for answer in answers if answer is not created} == {created.task_id}
    assert len(answers) == 50
    assert engine.depth() == 1
    engine.commit(engine.claim_one())
    assert replayed(engine.try_submit(idempotency_key="k", payload={"same": True})) == created.task_id
    shared.close()


def test_two_of_one_batch_with_one_key_are_one_task(engine: Engine) -> None:
    one = engine.submission(idempotency_key="k")
    first, second, other = engine.offer(one, one, engine.submission(idempotency_key="k", payload={"b": 1}))
    assert isinstance(first, Task)
    assert in_progress(second) == first.task_id
    assert isinstance(other, IdempotencyKeyReused)


def test_idem_03_a_client_that_never_heard_the_answer_repeats_and_gets_its_task(
    server: Server, flaky_proxy: ProxyFactory
) -> None:
    proxy = flaky_proxy(server.safe_url)
    engine = Engine(Server.connect(proxy.url))
    engine.submit()
    proxy.drop_next_reply(b"EVALSHA", times=2)
    with pytest.raises(RedisUnavailable):
        engine.submit(idempotency_key="k")
    task_id = in_progress(engine.try_submit(idempotency_key="k"))
    assert engine.task(task_id).idempotency_key == "k"
    engine.server.close()


def test_idem_03_a_keyed_delayed_once_failing_task_succeeds(any_server: Server) -> None:
    engine = Engine(any_server)
    task_id = engine.submit(idempotency_key="k", delay_seconds=60)
    assert engine.promote() == 1
    assert engine.commit(engine.claim_one(), "retry", delay_ms=60_000) is S.RETRYING
    assert in_progress(engine.try_submit(idempotency_key="k", delay_seconds=60)) == task_id
    assert engine.promote() == 1
    assert engine.commit(engine.claim_one()) is S.SUCCEEDED
    assert replayed(engine.try_submit(idempotency_key="k", delay_seconds=60)) == task_id
    check_invariants(any_server, engine.keys, engine.settings)


def test_idem_03_a_record_expires_only_from_the_end_of_its_task_on(engine: Engine) -> None:
    record = engine.keys.idempotency("default", "k")
    engine.submit(idempotency_key="k")
    assert engine.server.call("PTTL", record) == -1
    claim = engine.claim_one()
    assert engine.server.call("PTTL", record) == -1
    engine.commit(claim)
    assert 0 < engine.server.call("PTTL", record) <= engine.settings.idem_ttl_s * 1000


def test_a_dead_letter_that_is_requeued_is_in_progress_again(any_server: Server) -> None:
    engine = Engine(any_server)
    dead = engine.seed(S.DEAD_LETTERED, "default", idempotency_key="k").task_id
    assert replayed(engine.try_submit(idempotency_key="k")) == dead
    engine.requeue(dead, "somebody")
    assert any_server.call("PTTL", engine.keys.idempotency("default", "k")) == -1
    assert in_progress(engine.try_submit(idempotency_key="k")) == dead
    check_invariants(any_server, engine.keys, engine.settings)


def test_a_requeue_to_another_queue_keeps_the_key_of_the_first_one(engine: Engine) -> None:
    dead = engine.seed(S.DEAD_LETTERED, "default", idempotency_key="k").task_id
    engine.requeue(dead, "somebody", queue="other")
    assert in_progress(engine.try_submit(idempotency_key="k")) == dead
    engine.submit(idempotency_key="k", queue="other")
    check_invariants(engine.server, engine.keys, engine.settings)


def test_a_requeue_takes_no_key_away_from_a_newer_task(engine: Engine) -> None:
    dead = engine.seed(S.DEAD_LETTERED, "default", idempotency_key="k").task_id
    engine.server.call("DEL", engine.keys.idempotency("default", "k"))  # as after DTQ_IDEM_TTL_S
    newer = engine.submit(idempotency_key="k")
    engine.requeue(dead, "somebody")
    assert in_progress(engine.try_submit(idempotency_key="k")) == newer
    claims = {claim.task_id: claim for claim in engine.claim()}
    engine.commit(claims[dead])
    assert in_progress(engine.try_submit(idempotency_key="k")) == newer, "its record is not ended by the other's end"
    check_invariants(engine.server, engine.keys, engine.settings)


def test_a_requeue_takes_the_key_when_the_newer_task_is_gone(engine: Engine) -> None:
    dead = engine.seed(S.DEAD_LETTERED, "default", idempotency_key="k").task_id
    record = engine.keys.idempotency("default", "k")
    engine.server.call("HSET", record, "task", "f" * 32)
    engine.requeue(dead, "somebody")
    assert in_progress(engine.try_submit(idempotency_key="k")) == dead


def test_a_key_whose_task_record_is_gone_makes_a_new_task(engine: Engine) -> None:
    first = engine.seed(S.SUCCEEDED, "default", idempotency_key="k").task_id
    engine.server.call("DEL", engine.keys.task(first))
    assert engine.submit(idempotency_key="k", payload={"other": "body"}) != first


def test_the_end_of_the_retention_takes_the_record_with_the_task(engine: Engine) -> None:
    engine = Engine(engine.server, retention_max_tasks=1)
    engine.seed(S.SUCCEEDED, "default", idempotency_key="old")
    newest = engine.seed(S.SUCCEEDED, "default", idempotency_key="new").task_id
    assert engine.broker.upkeep.sweep() == 1
    check_invariants(engine.server, engine.keys, engine.settings)
    assert replayed(engine.try_submit(idempotency_key="new")) == newest
    engine.submit(idempotency_key="old")


def test_keys_of_people_never_become_part_of_a_name_in_redis(engine: Engine) -> None:
    for key in ("a b", "x:y", "*", "ü" * 100, "'"):
        engine.submit(idempotency_key=key)
    names = [name for name in dump(engine.server) if "idempotency" in name]
    assert len(names) == 5
    assert all(name.isascii() and "'" not in name and " " not in name for name in names)
    assert Keys().idempotency("q", "k") != Keys().idempotency("q", "K")


# --- side effects of handlers -----------------------------------------------------------------------------------------


def test_a_side_effect_is_run_once_and_its_result_kept(any_server: Server) -> None:
    broker = Engine(any_server).broker
    assert broker.begin_operation("mail", "a", 5) == ("RUN", 0.0)
    assert broker.begin_operation("mail", "a", 5) == ("RUN", 0.0), "the same run, asked twice"
    code, left_s = broker.begin_operation("mail", "b", 5)
    assert code == "BUSY"
    assert 4 < float(left_s) <= 5
    assert broker.end_operation("mail", "a", '{"ü":1}', 60)
    assert broker.begin_operation("mail", "b", 5) == ("DONE", '{"ü":1}')
    assert not broker.end_operation("mail", "b", "2", 60)


def test_a_side_effect_that_failed_or_whose_caller_died_frees_its_key(server: Server) -> None:
    broker = Engine(server).broker
    broker.begin_operation("mail", "a", 5)
    assert broker.end_operation("mail", "a", None, 60)
    assert broker.begin_operation("mail", "b", 0.001) == ("RUN", 0.0)
    threading.Event().wait(0.005)
    assert broker.begin_operation("mail", "c", 5) == ("RUN", 0.0)
    assert not broker.end_operation("mail", "b", "1", 60), "its hold had ended, and another one has the key"
