"""`flask dtq dlq`, `bulk`, `queue purge`, `worker quiet|stop` and `audit`: what they do, ask, say and return."""

from __future__ import annotations

import getpass
import json
import signal
import threading

import pytest

from dtq.bulk import BulkWish
from dtq.commands import many
from dtq.deadletters import DeadFilter
from dtq.model import Actor, ErrorInfo
from dtq.states import Status
from tests.support.commands import Commands, flask
from tests.support.dead import seed_dead
from tests.support.engine import Engine

S = Status
NO_ID = "0" * 32


@pytest.fixture
def commands(server):
    return Commands(server.safe_url)


@pytest.fixture
def engine(server):
    return Engine(server)


@pytest.fixture
def terminal(monkeypatch):
    """Somebody sits there."""
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)


def statuses(engine, ids):
    return {engine.task(task_id).status for task_id in ids}


# --- dead letters -----------------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_by_every_filter_and_shown(commands, engine):
    (mail,) = engine.bury(1, "mail", reason="exhausted", error=ErrorInfo("OSError", "no route", "Traceback: here"))
    (other,) = engine.bury(1, "other", error=ErrorInfo("ValueError", "wrong"))
    for arguments, expected in (
        ((), [other, mail]),
        (("--queue", "mail"), [mail]),
        (("--type", "echo"), [other, mail]),
        (("--cause", "exhausted"), [mail]),
        (("--error-class", "ValueError"), [other]),
        (("--error", "ROUTE"), [mail]),
        (("--since", "2099-01-01T00:00:00Z"), []),
        (("--until", "2099-01-01T00:00:00Z"), [other, mail]),
        (("--limit", "1"), [other]),
    ):
        found = commands.json("dlq", "list", *arguments)
        assert [one["task_id"] for one in found["dead_letters"]] == expected, arguments
    page = commands("dlq", "ls", "--limit", "1")
    assert "wrong" in page.stdout
    cursor = page.stderr.split()[-1]
    assert "no route" in commands("dlq", "list", "--cursor", cursor).stdout
    assert commands("dlq", "list", "--queue", "none").stderr == "no dead letters\n"
    assert "no route" in commands("dlq", "show", mail).stdout
    shown = commands.json("dlq", "show", mail)
    assert (shown["reason"], shown["task"]["attempts"][0]["traceback"]) == ("exhausted", "Traceback: here")
    commands("dlq", "show", NO_ID, code=3)
    commands("dlq", "show", engine.submit(), code=3)
    assert "cause" in commands("dlq", "list", "--cause", "fate", code=2).stderr
    assert "offset" in commands("dlq", "list", "--since", "yesterday", code=2).stderr


@pytest.mark.parametrize("command", ["dlq requeue", "dlq discard"])
def test_what_is_chosen_by_options_is_done_with_yes(commands, engine, command):
    wanted, others = engine.bury(5, "mail"), engine.bury(2, "other")
    result = commands(*command.split(), "--queue", "mail", "--yes", "--reason", "sorry")
    assert result.stdout == f"{command.replace(' ', '.')}: 5 done\n"
    assert statuses(engine, wanted) == {S.QUEUED if "requeue" in command else S.FAILED}
    assert statuses(engine, others) == {S.DEAD_LETTERED}
    told = commands.json("audit")["entries"][0]
    assert (told["actor"], told["count"], told["reason"]) == (f"cli:{getpass.getuser()}", 5, "sorry")
    assert commands.json(*command.split(), "--all", "--yes")["done"] == 2
    assert commands(*command.split(), "--queue", "mail").stdout.endswith("0 done\n"), (
        "nothing matches, nothing is asked"
    )


def test_a_requeue_may_go_elsewhere(commands, engine):
    first, second = engine.bury(2)
    commands("dlq", "requeue", first, "--to-queue", "slow", "--to-priority", "1")
    commands("retry-dlq", "--all", "--yes", "--to-queue", "slow", "--priority", "2", "--rate", "100")
    assert [(engine.task(one).queue, engine.task(one).priority) for one in (first, second)] == [
        ("slow", 1),
        ("slow", 2),
    ]


def test_named_dead_letters_are_discarded_one_by_one(commands, engine):
    dead, another, waiting = *engine.bury(2), engine.submit(queue="w")
    result = commands("discard-dlq", dead, waiting, NO_ID, "--yes", code=4)
    assert result.stdout == f"{dead}  failed (discarded)\n"
    assert len(result.stderr.splitlines()) == 2
    told = commands.json("dlq", "discard", another, "--yes")
    assert told["tasks"][0]["discarded"]
    assert [entry["action"] for entry in commands.json("audit")["entries"]] == ["task.discard"] * 2


@pytest.mark.parametrize("arguments", [(), (NO_ID, "--all"), ("--all", "--queue", "mail"), (NO_ID, "--error", "x")])
def test_without_a_clear_choice_nothing_is_done(commands, engine, arguments):
    engine.bury(1, "mail")
    for command in ("requeue", "discard"):
        assert "--all" in commands("dlq", command, *arguments, "--yes", code=2).stderr
    assert engine.queries.dead_letters.size() == 1


# --- asking -----------------------------------------------------------------------------------------------------------

DESTRUCTIVE = {
    "dlq requeue --all": "queue 5 dead letters",
    "dlq discard --queue default": "discard 5 dead letters",
    "dlq purge": "discard 5 dead letters",
    "queue purge waiting": "cancel 5 waiting tasks",
}


@pytest.fixture
def full(engine):
    engine.bury(5)
    engine.submit_many(5, queue="waiting")

    def untouched():
        return engine.queries.dead_letters.size() == 5 and engine.queries.counts("waiting")[S.QUEUED] == 5

    return untouched


@pytest.mark.parametrize("command", DESTRUCTIVE)
def test_without_a_terminal_and_without_yes_nothing_is_done(commands, full, command):
    result = commands(*command.split(), code=2)
    assert DESTRUCTIVE[command] in result.stderr
    assert "--yes" in result.stderr
    assert result.stdout == ""
    assert full()


@pytest.mark.parametrize("command", DESTRUCTIVE)
def test_a_dry_run_shows_the_count_and_three_and_changes_nothing(commands, full, command):
    lines = commands(*command.split(), "--dry-run").stdout.splitlines()
    assert lines[0] == f"would {DESTRUCTIVE[command]}"
    assert len(lines) == 5
    assert lines[-1].strip() == "... and 2 more"
    told = commands.json(*command.split(), "--dry-run")
    assert (told["state"], told["total"], len(told["samples"]), told["bulk_id"]) == ("preview", 5, 3, None)
    assert full()


@pytest.mark.parametrize("command", DESTRUCTIVE)
def test_on_a_terminal_the_count_and_three_are_shown_and_it_is_asked(commands, full, terminal, command):
    result = commands(*command.split(), input="n\n", code=2)
    assert DESTRUCTIVE[command] in result.stderr
    assert "... and 2 more" in result.stderr
    assert "nothing was done" in result.stderr
    assert full()
    assert "5 done" in commands(*command.split(), input="y\n").stdout
    assert not full()


def test_named_dead_letters_are_asked_for_too_before_they_are_discarded(commands, engine, terminal):
    (dead,) = engine.bury(1)
    commands("dlq", "discard", dead, input="\n", code=2)
    assert engine.queries.dead_letters.size() == 1
    assert "would discard 1 dead letter" in commands("dlq", "discard", dead, "--dry-run").stdout
    assert commands.json("dlq", "requeue", dead, NO_ID, "--dry-run")["total"] == 2
    commands("dlq", "discard", dead, input="y\n")
    assert engine.queries.dead_letters.size() == 0


def test_what_is_stored_cannot_move_the_cursor_of_who_is_asked(commands, engine):
    engine.bury(1, error=ErrorInfo("E", "\x1b[2Jgone"))
    assert "\x1b" not in commands("dlq", "purge", code=2).stderr


# --- queues, workers, jobs --------------------------------------------------------------------------------------------


def test_a_purge_of_a_queue_tells_how_many_it_has_cancelled(commands, engine):
    ids = engine.submit_many(4, queue="mail")
    assert commands("queue", "purge", "mail", "--yes", "--reason", "wrong").stdout == "queue.purge: 4 done\n"
    assert statuses(engine, ids) == {S.CANCELLED}
    assert commands.json("queue", "purge", "mail", "--yes")["done"] == 0
    commands("queue", "purge", "No", "--yes", code=2)


def test_a_worker_is_told(commands, engine):
    engine.register("w1")
    assert commands("worker", "quiet", "w1").stdout == "w1 is told: quiet\n"
    assert commands.json("worker", "quiet", "w1") == {"worker_id": "w1", "command": "quiet", "changed": False}
    assert commands.json("worker", "stop", "w1", "--reason", "deploy")["changed"]
    assert "no live worker" in commands("worker", "stop", "w2", code=3).stderr


def test_the_audit_is_listed_and_filtered(commands, engine):
    commands("queue", "pause", "mail", "--reason", "too hot")
    commands("queue", "resume", "mail", "--reason", "cool")
    shown = commands("audit").stdout.splitlines()
    assert ["queue.resume" in shown[1], "queue.pause" in shown[2], "too hot" in shown[2]] == [True] * 3
    assert len(commands.json("audit", "--action", "queue.pause")["entries"]) == 1
    assert commands.json("audit", "--actor", "cli:nobody")["entries"] == []
    assert commands("audit", "--target", "none").stderr == "nothing was done\n"
    page = commands("audit", "--limit", "1")
    assert "queue.pause" in commands("audit", "--cursor", page.stderr.split()[-1]).stdout


def test_jobs_are_listed_shown_resumed_and_aborted(commands, engine):
    engine.bury(30)
    job = engine.bulk.begin(BulkWish(action="dlq.discard", wanted=DeadFilter(queue="default")), Actor("api:x"))
    engine.bulk.step(job, "one that was killed", 4)
    engine.server.call("HSET", engine.keys.bulk(job.bulk_id), "lease", 1)
    assert "waiting" in commands("bulk", "list").stdout
    shown = commands("bulk", "show", job.bulk_id).stdout
    for text in ("4 of 30", "dlq.discard", '{"queue":"default"}', "api:x"):
        assert text in shown
    assert commands("bulk", "resume", job.bulk_id).stdout == "dlq.discard: 30 done\n"
    assert "ended already" in commands("bulk", "resume", job.bulk_id, code=4).stderr
    commands("bulk", "abort", job.bulk_id, code=4)
    another = engine.bulk.begin(BulkWish(action="dlq.purge", wanted=DeadFilter()), Actor("api:x"))
    assert "aborted after 0 of 0" in commands("bulk", "abort", another.bulk_id).stdout
    assert [one["state"] for one in commands.json("bulk", "list")["jobs"]] == ["aborted", "done"]
    commands("bulk", "show", NO_ID, code=3)


def test_a_job_that_another_process_does_is_watched_to_its_end(commands, engine, monkeypatch):
    engine.bury(10)
    monkeypatch.setattr(many, "LOOK_S", 0.01)
    job = engine.bulk.begin(BulkWish(action="dlq.discard", wanted=DeadFilter()), Actor("api:x"))
    engine.bulk.step(job, "another", 2)
    timer = threading.Timer(0.3, lambda: engine.bulk.step(job, "another", 100))
    timer.start()
    assert commands("bulk", "resume", job.bulk_id).stdout == "dlq.discard: 10 done\n"
    timer.join()


def test_what_could_not_be_changed_ends_with_1(commands, engine):
    newer, *_ = engine.bury(3)
    engine.server.call("HSET", engine.keys.task(newer), "v", 99)
    result = commands("dlq", "purge", "--yes", code=1)
    assert result.stdout == "dlq.purge: 2 done, 1 failed\n"
    assert "1 could not be changed" in result.stderr


def test_ctrl_c_aborts_the_job_and_says_how_far_it_came(engine, server, wait_until):
    seed_dead(engine, 1_000)
    process = flask("dlq", "purge", "--yes", "--rate", "100", "--json", environment={"DTQ_REDIS_URL": server.safe_url})
    try:
        wait_until(lambda: any(job.done for job in engine.bulk.recent()), what="the first of them", timeout_s=30)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    told = json.loads(out)
    assert (process.returncode, told["state"]) == (1, "aborted")
    assert 0 < told["done"] < 1_000
    assert f"aborted after {told['done']} of 1000" in err
    actions = [entry["action"] for entry in Commands(server.safe_url).json("audit")["entries"]]
    assert sorted(actions) == ["bulk.abort", "dlq.purge"]
