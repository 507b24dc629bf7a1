"""The language of the query box: what it understands, and how it tells what it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtq.redisio import Server
from dtq.states import Status
from dtq.taskfilter import TaskFilter
from dtq.taskquery import MAX_CHARS, MAX_CLAUSES, parse, quoted
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.web import running_api


def test_clauses_are_read_and_joined() -> None:
    query = parse('status:dead_lettered,failed type:email.* queue:mail error:"Connection Refused" age>10m age<2h '
                  "tag:x tag:y worker:h1 priority:9 smtp")  # fmt: skip
    assert query.problems == []
    assert query.statuses == (Status.DEAD_LETTERED, Status.FAILED)
    assert (query.task_type, query.queue, query.worker, query.priority) == ("email.*", "mail", "h1", 9)
    assert query.error == "connection refused"
    assert (query.older_than_s, query.younger_than_s) == (600, 7200)
    assert query.tags == ["x", "y"]
    assert query.words == ["smtp"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("status:deadd", "a status is one of"),
        ("queue:UP", "a queue is 1 to 64"),
        ("type:a/b", "a type is"),
        ("colour:red", "there is no such key"),
        ("age:10m", "age>10m"),
        ("age>10", "age>10m"),
        ("priority:10", "from 0 to 9"),
        ("priority>3", "only age has"),
        ("tag:", "it is empty"),
        ('error:"refused', "the quotation does not end"),
    ],
)
def test_what_is_not_understood_is_told_at_its_clause_and_the_rest_holds(text: str, told: str) -> None:
    query = parse(f"{text} " if text.endswith('"refused') else f"{text} tag:kept")
    assert [problem.text for problem in query.problems] == [text]
    assert told in query.problems[0].problem
    if not text.endswith('"refused'):
        assert query.tags[-1] == "kept"


def test_a_clause_can_be_taken_away_and_replaced() -> None:
    query = parse('status:queued error:"no way" tag:x')
    assert query.without(query.clauses[1]) == "status:queued tag:x"
    assert query.having("status", "running") == 'error:"no way" tag:x status:running'
    assert query.having("status", "") == 'error:"no way" tag:x'
    assert query.having("error", 'say "no" \\').endswith('error:"say \\"no\\" \\\\"')


def test_what_is_too_long_is_cut_and_told() -> None:
    assert parse("x" * (MAX_CHARS + 1)).problems[-1].problem.startswith("longer than")
    assert len(parse("a " * (MAX_CLAUSES + 5)).clauses) == MAX_CLAUSES + 1


def test_ages_become_times_of_redis_and_patterns_stay_patterns() -> None:
    wanted = TaskFilter.of(parse("age>10m age<1h type:email.*"), now=10_000)
    assert (wanted.created_before, wanted.created_after) == (9_400, 6_400)
    assert (wanted.task_type, wanted.type_pattern) == (None, "email.*")
    assert TaskFilter.of(parse("type:email"), now=0).task_type == "email"
    assert TaskFilter.of(parse("status:queued queue:a age>1s"), now=0).indexed
    assert not TaskFilter.of(parse("status:queued tag:a"), now=0).indexed


@given(st.text(max_size=200))
def test_any_text_is_read_without_raising_and_none_of_it_is_lost(text: str) -> None:
    query = parse(text)
    assert "".join(" ".join(clause.text for clause in query.clauses).split()) == "".join(text.split())


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=60))
def test_a_quoted_value_comes_back_as_it_was(value: str) -> None:
    query = parse(f"worker:{quoted(value)}")
    assert query.worker == value
    assert query.problems == []


# --- the same query everywhere ----------------------------------------------------------------------------------------


def test_the_api_takes_the_same_query_and_refuses_what_it_does_not_understand(server: Server) -> None:
    with running_api(server.safe_url) as api:
        wanted = api.post(task_type="mail.send", tags=["a b"])
        api.post(task_type="mail.send")
        api.post(task_type="report", tags=["a b"])
        found = api.http.get("/api/v1/tasks", query_string={"q": 'type:mail.* tag:"a b" age<1h'}).json["tasks"]
        assert [task["task_id"] for task in found] == [wanted["task_id"]]
        both = {"q": 'tag:"a b"', "task_type": "report"}
        assert [task["task_type"] for task in api.http.get("/api/v1/tasks", query_string=both).json["tasks"]] == [
            "report"
        ]
        refused = api.http.get("/api/v1/tasks?q=colour:red")
        assert (refused.status_code, refused.json["errors"][0]["pointer"]) == (400, "/q")


def test_the_command_line_takes_the_same_query(server: Server) -> None:
    engine = Engine(server)
    wanted = engine.submit(task_type="mail.send", priority=9)
    engine.submit(task_type="mail.send")
    commands = Commands(server.safe_url)
    found = commands.json("task", "list", "--query", "type:mail.* priority:9")["tasks"]
    assert [task["task_id"] for task in found] == [wanted]
    assert "there is no such key" in commands("task", "list", "--query", "colour:red", code=2).stderr
