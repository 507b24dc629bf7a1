"""Cancelling all tasks that a filter finds: a bulk job over tasks, by the engine, the API and the command line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dtq.audit import AuditFilter
from dtq.bulk import BulkJob, BulkWish, matching, run_job
from dtq.bulk.jobs import MOST_A_STEP
from dtq.client import Client
from dtq.deadletters import DeadFilter
from dtq.errors import InvalidTask
from dtq.http_client import HttpClient
from dtq.model import Actor, dumps
from dtq.queries import MOST_LOOKED_AT
from dtq.redisio import Server
from dtq.settings import load_settings
from dtq.states import Status
from dtq.taskfilter import TaskFilter
from dtq.taskquery import parse
from dtq.web.schemas import BulkAnswer
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.invariants import check_invariants
from tests.support.servers import ServerProcess
from tests.support.web import Api, running_api
from tests.support.web_server import running_web

S = Status
ANN = Actor("cli:ann", "a bad deploy", "req-1")


def begin(engine: Engine, wanted: TaskFilter, **more: Any) -> BulkJob:
    return engine.bulk.begin(BulkWish(action="task.cancel", tasks=wanted, **more), ANN)


def run(engine: Engine, wanted: TaskFilter, **more: Any) -> BulkJob:
    return run_job(engine.bulk, begin(engine, wanted, **more))


def told(job: BulkJob) -> tuple[str, int, int, int, int]:
    return job.state, job.total, job.done, job.skipped, job.failed


def in_status(engine: Engine, status: Status, ids: list[str]) -> int:
    return sum(engine.task(task_id).status is status for task_id in ids)


# --- the job ----------------------------------------------------------------------------------------------------------


def test_all_that_have_not_ended_are_cancelled_as_one_is_and_nothing_else(
    any_server: Server, bounded_keys: None
) -> None:
    engine = Engine(any_server)
    running = engine.submit(idempotency_key="r")
    claim = engine.claim_one()
    waiting = [engine.submit(priority=band, idempotency_key=f"k{band}") for band in range(10)] + engine.submit_many(60)
    later = [engine.seed(S.RETRYING, "default").task_id, engine.submit(delay_seconds=60)]
    ended = {status: engine.seed(status).task_id for status in (S.DEAD_LETTERED, S.SUCCEEDED, S.EXPIRED, S.FAILED)}
    elsewhere = engine.submit(queue="other")
    job = run(engine, TaskFilter(queue="default"))
    assert told(job) == ("done", 73, 73, 0, 0)
    assert job.total_exact
    assert in_status(engine, S.CANCELLED, [*waiting, *later]) == 72
    asked = engine.task(running)
    assert (asked.status, asked.cancel_requested, asked.reason) == (S.RUNNING, True, "a bad deploy")
    assert engine.task(waiting[3]).reason == "a bad deploy"
    assert {status: engine.task(task_id).status for status, task_id in ended.items()} == {one: one for one in ended}
    assert engine.task(elsewhere).status is S.QUEUED
    entries = engine.queries.audit(AuditFilter()).entries
    assert [(one.actor, one.action, one.target, one.count) for one in entries] == [
        ("cli:ann", "task.cancel", job.bulk_id, 73)
    ], "one entry for all of it"
    assert engine.kinds(waiting[0])[-1] == "TASK_CANCELLED"
    assert told(run(engine, TaskFilter(queue="default"))) == ("done", 1, 0, 1, 0), "what was asked is not asked again"
    assert engine.commit(claim) is S.CANCELLED, "what it did after it was asked is dropped"
    assert told(run(engine, TaskFilter(statuses=(S.SUCCEEDED, S.FAILED)))) == ("done", 0, 0, 0, 0)
    check_invariants(any_server, engine.keys, engine.settings)


def test_without_an_index_all_records_are_looked_at_in_bounded_steps(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(server)
    chosen = engine.submit_many(30, tags=["bad"], task_type="mail.send")
    others = engine.submit_many(2 * MOST_LOOKED_AT)
    chosen += engine.submit_many(130, tags=["bad"], task_type="mail.send")
    wanted = TaskFilter.of(parse("tag:bad type:mail.*"), engine.server.now())
    monkeypatch.setattr(matching, "MOST_COUNTED", 400)
    job = begin(engine, wanted)
    assert (job.total, job.total_exact) == (130, False), "the newest only are counted"
    looked, changed = [], []
    tasks = engine.bulk._queries.tasks

    def watched(*args: Any) -> Any:
        page = tasks(*args)
        looked.append(page.looked_at)
        return page

    monkeypatch.setattr(engine.bulk._queries, "tasks", watched)
    while (step := engine.bulk.step(job, "r", 1_000)).code == "RUNNING":
        changed.append(step.changed)
    assert step.code == "DONE"
    assert max(looked) <= MOST_LOOKED_AT
    assert max(changed) <= MOST_A_STEP
    assert told(engine.bulk.get(job.bulk_id)) == ("done", 130, 160, 0, 0)
    assert in_status(engine, S.CANCELLED, chosen) == 160
    assert engine.queries.counts("default")[S.QUEUED] == len(others)
    monkeypatch.setattr(matching, "MOST_COUNTED", 5_000)
    assert engine.bulk.count(BulkWish(action="task.cancel", tasks=wanted)) == (0, True)


def test_only_those_of_the_time_that_is_asked_for_are_cancelled(server: Server) -> None:
    engine = Engine(server)
    old, after = engine.submit_many(30), engine.server.now()
    middle, before = engine.submit_many(30), engine.server.now()
    new = engine.submit_many(30)
    assert told(run(engine, TaskFilter(created_after=after, created_before=before))) == ("done", 30, 30, 0, 0)
    assert in_status(engine, S.CANCELLED, middle) == 30
    assert told(run(engine, TaskFilter(created_before=before, task_type="echo"))) == ("done", 30, 30, 0, 0)
    assert in_status(engine, S.CANCELLED, old) == 30
    for nothing in (-1e9, 0.0, 1e-6):
        assert told(run(engine, TaskFilter(created_before=nothing))) == ("done", 0, 0, 0, 0)
    assert in_status(engine, S.QUEUED, new) == 30
    assert told(run(engine, TaskFilter(created_before=before + 1e9))) == ("done", 30, 30, 0, 0)


def test_it_ends_although_tasks_keep_coming_and_counts_those_that_end_by_themselves(server: Server) -> None:
    engine = Engine(server)
    ids = engine.submit_many(50)
    server.call("HSET", engine.keys.task(ids[-1]), "type", "not a type")
    job = begin(engine, TaskFilter())
    for claim in engine.claim("w1", 8):  # the oldest; the job begins with the newest
        engine.commit(claim)
    steps = 0
    while engine.bulk.step(job, "r", 5).code == "RUNNING":
        engine.submit_many(10)
        steps += 1
    assert steps <= 10
    assert told(engine.bulk.get(job.bulk_id)) == ("done", 50, 41, 8, 1)
    assert engine.queries.counts("default")[S.QUEUED] == 1 + 10 * steps


def test_what_has_moved_since_it_was_looked_at_is_judged_by_what_the_filter_asks(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the script a worker may claim: `status:queued` must not stop what runs, `queue:x` must."""
    engine = Engine(server)
    tasks = engine.bulk._queries.tasks

    def claimed_meanwhile(*args: Any) -> Any:
        page = tasks(*args)
        engine.claim("w1", 1)
        return page

    for wanted, done, skipped in (
        (TaskFilter(statuses=(S.QUEUED,)), 2, 1),
        (TaskFilter(queue="default"), 3, 0),
    ):
        ids = engine.submit_many(3)
        with monkeypatch.context() as patch:
            patch.setattr(engine.bulk._queries, "tasks", claimed_meanwhile)
            assert told(run(engine, wanted)) == ("done", 3, done, skipped, 0)
        assert engine.task(ids[0]).status is S.RUNNING
        assert engine.task(ids[0]).cancel_requested is (skipped == 0)
        for claim_id in ids[:1]:
            engine.cancel(claim_id)
            engine.end_leases("w1")
            engine.take_back()
    check_invariants(server, engine.keys, engine.settings)


def test_a_step_that_is_sent_again_after_a_lost_reply_changes_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(server)
    engine.submit_many(30)
    job = begin(engine, TaskFilter())
    run_script = engine.bulk._scripts.run
    replies = []

    def twice(name: str, /, **arguments: Any) -> Any:
        first = run_script(name, **arguments)
        replies.append((first, run_script(name, **arguments)))
        return first

    monkeypatch.setattr(engine.bulk._scripts, "run", twice)
    for expected in ([b"RUNNING", 12], [b"RUNNING", 12], [b"DONE", 6]):
        engine.bulk.step(job, "r", 12)
        assert replies.pop()[0] == expected
    monkeypatch.undo()
    assert told(engine.bulk.get(job.bulk_id)) == ("done", 30, 30, 0, 0)
    assert engine.totals()["echo:cancelled"] == 30
    assert len(engine.queries.audit(AuditFilter()).entries) == 1


def test_a_job_that_was_left_is_taken_up_where_it_stood_and_an_abort_is_heard(server: Server) -> None:
    engine = Engine(server)
    engine.submit_many(40)
    job = begin(engine, TaskFilter(queue="default"))
    assert engine.bulk.step(job, "one", 10)[:2] == ("RUNNING", 10)
    assert engine.bulk.step(job, "two", 10)[:2] == ("HELD", 0)
    server.call("HSET", engine.keys.bulk(job.bulk_id), "lease", 1)
    (left,) = engine.bulk.waiting()
    assert left.wish == job.wish
    stored = json.loads(server.call("HGET", engine.keys.bulk(job.bulk_id), "filter"))
    with pytest.raises(TypeError):
        DeadFilter(**stored)  # as a dtq reads it that knows no others
    assert engine.bulk.step(left, "two", 10)[:2] == ("RUNNING", 10)
    assert engine.bulk.step(left, "two", 0)[:2] == ("RUNNING", 0), "a renewal alone"
    engine.bulk.abort(job.bulk_id, ANN)
    assert engine.bulk.step(left, "two", 10)[:2] == ("ABORTED", 0)
    assert engine.queries.counts("default")[S.QUEUED] == 20
    began = time.monotonic()
    assert run(engine, TaskFilter(), rate=10.0).done == 20
    assert time.monotonic() - began > 1.5
    with pytest.raises(InvalidTask):
        begin(engine, TaskFilter(), rate=0.0)


def test_a_filter_is_stored_and_read_as_it_was() -> None:
    query = parse(
        "status:queued,running type:a.* queue:q tag:x tag:y error:e class:C reason:r worker:w priority:3 age>1m word"
    )
    for wanted in (
        TaskFilter(),
        TaskFilter.of(query, 1e9),
        TaskFilter(status=S.PENDING, task_type="t", tag="x", created_after=1.5, created_before=2.25),
    ):
        assert TaskFilter.from_stored(json.loads(dumps(wanted.stored()))) == wanted
        assert json.loads(dumps(wanted.as_json())) == wanted.as_json()
    with pytest.raises(TypeError):
        TaskFilter.from_stored({"colour": "red"})
    both = TaskFilter(status=S.QUEUED, statuses=(S.RUNNING,))
    assert both.chosen == ()
    assert both.live() is None, "what excludes each other is nothing, not all"


# --- the API, the clients, the command line ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared(valkey: ServerProcess) -> Iterator[Api]:
    with running_api(valkey.url) as made:
        yield made


@pytest.fixture
def api(shared: Api, server: Server) -> Api:
    return replace(shared, http=shared.app.test_client())


def test_the_api_previews_cancels_and_refuses_what_it_does_not_understand(api: Api) -> None:
    path = "/api/v1/tasks/cancel"
    bad = [api.post(task_type="mail.send", queue="mail")["task_id"] for _ in range(7)]
    good = api.post(task_type="echo", queue="mail")["task_id"]
    body = {"filter": {"queue": "mail", "q": "type:mail.*"}, "reason": "wrong list"}
    preview = api.http.post(path, json={**body, "dry_run": True})
    found = BulkAnswer.model_validate_json(preview.data)
    assert (found.state, found.total, found.total_exact, found.bulk_id) == ("preview", 7, True, None)
    assert found.filter == {"queue": "mail", "task_type": "mail.*"}
    assert [one["task_id"] for one in preview.json["samples"]] == bad[:1:-1]
    assert api.get(bad[0])["status"] == "queued"
    answer = api.http.post(path, json=body)
    job = BulkAnswer.model_validate_json(answer.data)
    assert (answer.status_code, job.state, job.done, job.reason) == (200, "done", 7, "wrong list")
    assert [api.get(one)["status"] for one in (*bad, good)] == ["cancelled"] * 7 + ["queued"]
    for wrong, pointer in (
        ({}, "/filter"),
        ({"filter": None}, "/filter"),
        ({"filter": {"q": "colour:red"}}, "/filter/q"),
        ({"filter": {"q": "status:"}}, "/filter/q"),
        ({"filter": {"limit": 5}}, "/filter/limit"),
        ({"filter": {}, "rate": 0}, "/rate"),
        ({"filter": {}, "task_ids": [good]}, "/task_ids"),
    ):
        response = api.http.post(path, json=wrong)
        assert response.status_code == 400, wrong
        assert response.json["errors"][0]["pointer"] == pointer, response.json
    assert api.get(good)["status"] == "queued"
    slow = api.http.post(path, json={"filter": {}, "rate": 1})
    assert slow.status_code == 202
    assert api.http.post(f"{slow.headers['Location']}/abort").json["state"] == "aborted"


def test_programs_cancel_what_matches(server: Server) -> None:
    with Client(settings=load_settings(env_file=None, redis_url=server.safe_url)) as client:
        ids = [client.submit("mail.send", tags=["a"]).task_id for _ in range(3)]
        client.submit("echo")
        with pytest.raises(InvalidTask, match="colour"):
            client.cancel_matching("colour:red")
        job = client.cancel_matching("tag:a status:queued", actor=ANN)
        assert told(job) == ("done", 3, 3, 0, 0)
        assert {client.get(one).reason for one in ids} == {"a bad deploy"}
        with running_web(server.safe_url) as web, HttpClient(f"http://127.0.0.1:{web.port}") as remote:
            assert remote.cancel_matching(dry_run=True)["total"] == 1
            assert client.queries.counts("default")[S.QUEUED] == 1
            found = remote.cancel_matching(task_type="echo", reason="why not")
            assert (found["state"], found["done"]) == ("done", 1)
            assert remote.bulk_job(found["bulk_id"]) == found


def test_the_command_line_cancels_what_options_choose_after_asking(server: Server) -> None:
    commands, engine = Commands(server.safe_url), Engine(server)
    ids, other = engine.submit_many(5, tags=["a"]), engine.submit(queue="other")
    command = ("cancel", "--query", "tag:a")
    assert "cancel 5 tasks: nobody is there to be asked" in commands(*command, code=2).stderr
    lines = commands(*command, "--dry-run").stdout.splitlines()
    assert (lines[0], len(lines), lines[-1].strip()) == ("would cancel 5 tasks", 5, "... and 2 more")
    for wrong in (
        ("cancel",),
        ("cancel", ids[0], "--all"),
        ("cancel", "--all", "--queue", "q"),
        ("cancel", ids[0], "--tag", "a"),
        ("cancel", "--query", "colour:red", "--yes"),
    ):
        commands(*wrong, code=2)
    assert in_status(engine, S.QUEUED, [*ids, other]) == 6
    assert commands(*command, "--yes", "--reason", "why not").stdout == "task.cancel: 5 done\n"
    assert engine.task(ids[0]).reason == "why not"
    assert '{"tags":["a"]}' in commands("bulk", "show", engine.bulk.recent(1)[0].bulk_id).stdout
    assert "would cancel 1 task" in commands("task", "cancel", other, "--dry-run").stdout
    assert commands.json("task", "cancel", "--all", "--yes")["done"] == 1
