"""What pages are made of: words, shapes, stories, trees, findings. No server is needed to tell."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from dtq.attention import by_subject, findings, starved_bands
from dtq.charts import Hour
from dtq.model import Attempt, Task, WorkerInfo
from dtq.queries import QueueInfo
from dtq.states import BANDS, Disposition, Status
from dtq.web.dashboard import shapes, story, words
from dtq.web.dashboard.flash import own_path
from dtq.web.dashboard.jsontree import MASK, Node, Redactor, tree

NOW = 1_000_000.0


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "–"), (0, "0 ms"), (-1, "0 ms"), (0.0123, "12 ms"), (0.9996, "1.0 s"), (9.94, "9.9 s"), (9.96, "10 s"),
     (59.4, "59 s"), (59.6, "1 m"), (125, "2 m 5 s"), (3600, "1 h"), (3700, "1 h 1 m"), (90_061, "1 d 1 h")],
)  # fmt: skip
def test_durations_have_two_units_at_most(seconds: float | None, said: str) -> None:
    assert words.duration(seconds).replace("\N{NO-BREAK SPACE}", " ") == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "now"),
        (0.9, "now"),
        (1, "1 s ago"),
        (59.9, "59 s ago"),
        (61, "1 m ago"),
        (-42, "in 42 s"),
        (200_000, "2 d ago"),
    ],
)
def test_ages_have_one_unit(seconds: float, said: str) -> None:
    assert words.ago(seconds).replace("\N{NO-BREAK SPACE}", " ") == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "–"), (0, "0"), (999, "999"), (9_994, "9,994"), (9_996, "10.0k"), (12_431, "12.4k"), (123_456, "123k"),
     (12_345_678, "12.3M"), (6.2, "6.2")],
)  # fmt: skip
def test_numbers_are_short_where_there_is_little_room(value: float | None, said: str) -> None:
    assert words.short_number(value) == said


def test_shares_sizes_and_links() -> None:
    assert [words.share(*pair).replace("\N{NO-BREAK SPACE}", " ") for pair in ((0, 0), (1, 3), (1, 250), (0, 5))] == [
        "–", "33 %", "0.4 %", "0 %"]  # fmt: skip
    assert [words.size(number) for number in (812, 2_300, 2_300_000)] == ["812 B", "2.3 KB", "2.3 MB"]
    assert words.link(q="a b&c", cursor=None) == "?q=a+b%26c"
    assert words.link(q="") == ""


@pytest.mark.parametrize("path", ["https://evil.example", "//evil", "/\\evil", "evil", "", "/a\nb", "/" + "a" * 5000])
def test_a_form_leads_nowhere_else(path: str) -> None:
    assert own_path(path) == "/"
    assert own_path("/tasks?q=a b") == "/tasks?q=a b"


# --- shapes -----------------------------------------------------------------------------------------------------------


def test_the_upper_edge_is_a_round_number_above_the_values() -> None:
    assert [shapes.top_of([value]) for value in (0, 1, 7, 11, 99, 101, 4_200)] == [1, 1, 8, 15, 100, 150, 5_000]
    assert shapes.top_of([None, 3], [40]) == 40
    for value in range(1, 3000, 7):
        assert value <= shapes.top_of([value]) <= 2 * value + 1


def test_columns_are_one_outline_and_what_is_there_is_seen() -> None:
    assert shapes.steps([0, 5, 5, 0], 10, 20) == "M0 20H4V10H12V20H16V20z"
    assert "V19" in shapes.steps([0.0001], 10, 20), "the least is a pixel"
    assert shapes.steps([0, 0], 10, 20) == "M0 20H8V20z"


def test_a_line_breaks_where_nothing_is_known() -> None:
    assert shapes.line([1, None, 2, 3], 4, 30, 8).count("M") == 2
    assert shapes.line([None, None], 4, 30, 8) == ""
    assert shapes.area([1, None, 2, 3], 4, 30, 8).count("z") == 2
    assert shapes.area([], 4, 30, 8) == ""


def test_parts_of_a_bar_fill_it_and_none_vanishes() -> None:
    found = shapes.shares([("a", 1), ("b", 0), ("c", 9_999)])
    assert [name for name, _, _ in found] == ["a", "c"]
    assert found[0][2] > 1
    assert sum(length for _, _, length in found) == pytest.approx(100, abs=0.1)
    assert shapes.shares([("a", 0)]) == []


# --- stories ----------------------------------------------------------------------------------------------------------


def task(status: Status, **fields: Any) -> Task:
    given: dict[str, Any] = {
        "task_id": "0" * 32, "task_type": "echo", "queue": "default", "status": status, "priority": 5, "seq": 1,
        "attempt": 1, "failures": 0, "crashes": 0, "max_attempts": 3, "timeout_ms": None, "created_at": NOW - 100,
        "available_at": NOW - 100, "started_at": NOW - 90, "finished_at": NOW - 80, "worker_id": "w1",
        "cancel_requested": False, "error": None, "result_state": "none", **fields,
    }  # fmt: skip
    return Task(**given)


def attempt(number: int, started: float, ran_s: float, outcome: Disposition, **fields: Any) -> Attempt:
    return Attempt(number=number, worker_id="w1", started_at=started, finished_at=started + ran_s,
                   duration_ms=round(ran_s * 1000), outcome=outcome, **fields)  # fmt: skip


@pytest.mark.parametrize(
    ("told", "part"),
    [
        (task(Status.PENDING, available_at=NOW + 42), "It starts in 42 s."),
        (task(Status.QUEUED, available_at=NOW - 5), "waiting for its attempt 2 for 5.0 s, at priority 5"),
        (task(Status.RUNNING), "Attempt 1 of 3 has been running for 1 m 30 s on w1."),
        (task(Status.RUNNING, progress={"fraction": 0.4, "message": "step 4"}), "40% done: step 4."),
        (task(Status.RUNNING, cancel_requested=True), "was asked to cancel it."),
        (task(Status.RETRYING, available_at=NOW + 9, error={"class": "OSError"}), "OSError; the next one starts in"),
        (task(Status.SUCCEEDED, attempt=2), "on attempt 2: 10 s of work, 20 s after"),
        (task(Status.DEAD_LETTERED, attempt=3, reason="exhausted", error={"class": "E"}), "after 3 attempts with E."),
        (task(Status.DEAD_LETTERED, reason="permanent"), "no further attempt would mend"),
        (task(Status.DEAD_LETTERED, reason="worker_crashed", crashes=3), "took 3 workers down"),
        (task(Status.DEAD_LETTERED, reason="unknown_task_type"), "No worker knew its type"),
        (task(Status.FAILED, reason="exhausted"), "not among the dead letters."),
        (task(Status.FAILED, reason="permanent", discarded=True), "It was given up."),
        (task(Status.CANCELLED, reason="by mistake"), "was cancelled 20 s after it was submitted: by mistake."),
        (task(Status.EXPIRED), "Its time ran out before it started"),
    ],
)  # fmt: skip
def test_each_status_has_its_sentence(told: Task, part: str) -> None:
    assert part in story.sentence(told, NOW).replace("\N{NO-BREAK SPACE}", " ")


def test_the_line_of_time_has_waits_runs_marks_and_what_is_to_come() -> None:
    history = [
        attempt(1, NOW - 99, 1, Disposition.FAILED, error_class="OSError", message="m"),
        attempt(2, NOW - 90, 2, Disposition.LOST),
        Attempt(number=0, worker_id="", started_at=None, finished_at=NOW - 50, duration_ms=None,
                outcome=Disposition.REQUEUED, message="requeued by anna"),
        attempt(1, NOW - 40, 3, Disposition.TIMED_OUT),
    ]  # fmt: skip
    rows = story.rows(task(Status.RETRYING, attempts=history, available_at=NOW + 10), NOW)
    assert [row.said for row in rows] == ["failed", "lost with its worker", "requeued by anna", "timed out", "to come"]
    assert [row.waited_s for row in rows] == [1, 8, None, 10, 47]
    assert [row.outcome for row in rows] == ["dead_lettered", "retrying", "queued", "dead_lettered", "retrying"]
    spans = [span for row in rows for span in row.spans]
    assert [span.kind for span in spans] == ["wait", "run", "wait", "run", "wait", "run", "ahead"]
    assert spans[0].start == 0
    for before, after in pairwise(spans):
        assert after.start == pytest.approx(before.start + before.length, abs=0.05)
    assert spans[-1].start + spans[-1].length == pytest.approx(100, abs=0.1)


def test_a_long_wait_is_cut_and_a_short_run_is_seen() -> None:
    history = [attempt(1, NOW - 10, 0.05, Disposition.SUCCEEDED)]
    rows = story.rows(task(Status.SUCCEEDED, created_at=NOW - 86_400, attempts=history), NOW)
    wait, run = rows[0].spans
    assert wait.cut
    assert wait.seconds == pytest.approx(86_390)
    assert wait.length == pytest.approx(60, abs=1)
    assert run.length > 30


def test_a_task_without_a_history_has_an_empty_line() -> None:
    assert story.rows(task(Status.CANCELLED, started_at=None), NOW) == []


# --- trees ------------------------------------------------------------------------------------------------------------


def drawn(node: Node) -> int:
    return 1 + sum(drawn(child) for child in node.children)


def test_keys_are_hidden_whatever_their_case_and_punctuation_and_depth() -> None:
    hides = Redactor(("api_key", "token"))
    assert [name for name in ("API-Key", "x_apikey2", "tokens", "Token", "key", "tok") if hides.hides(name)] == [
        "API-Key", "x_apikey2", "tokens", "Token"]  # fmt: skip
    value = {"a": [{"token": {"deep": 1}}, 2], "apiKey": "x"}
    assert hides.redacted(value) == ({"a": [{"token": MASK}, 2], "apiKey": MASK}, 2)
    assert not Redactor(("", "--")).hides("anything"), "a word of nothing would hide everything"


def test_a_tree_is_bounded_the_upper_levels_first() -> None:
    root = tree({"big": [list(range(50))] * 50, "last": 1}, Redactor(()), 100)
    assert drawn(root) == 101
    assert [child.name for child in root.children] == ["big", "last"], "no long list pushes out what stands beside it"
    assert root.children[0].left_out == 0
    assert root.children[0].children[-1].left_out == 50
    assert tree("x" * 5000, Redactor(())).text.endswith('(5,000 characters)"')
    assert tree([], Redactor(())).count == 0


# --- findings ---------------------------------------------------------------------------------------------------------


def queue(name: str = "default", **fields: Any) -> QueueInfo:
    waits: dict[int, float | None] = fields.pop("waits", {})
    counts = dict.fromkeys(Status, 0) | {Status.QUEUED: len(waits)}
    given: dict[str, Any] = {
        "queue": name, "counts": counts, "depth": 0, "paused": None,
        "claimed_by_priority": dict.fromkeys(BANDS, 0),
        "waiting_by_priority": {band: int(band in waits) for band in BANDS},
        "oldest_waiting_by_priority_s": {band: waits.get(band) for band in BANDS}, **fields,
    }  # fmt: skip
    return QueueInfo(**given)


def worker(**fields: Any) -> WorkerInfo:
    given: dict[str, Any] = {
        "worker_id": "w1", "queues": ("default",), "concurrency": 4, "lease_s": 30.0, "started_at": NOW, "running": 0,
        "heartbeat_at": NOW, "state": "running", "held": 0, "task_types": (), "abandoned_threads": 0, "host": "h",
        "pid": 1, "version": "0", **fields,
    }  # fmt: skip
    return WorkerInfo(**given)


def hour(**counted: dict[str, int]) -> Hour:
    minutes = {name: [{}] * 59 + [counts] for name, counts in counted.items()}
    return Hour(first_minute=0, second=30, counted=minutes, gauges=[None] * 60, complete=True)


def kinds(*queues: QueueInfo, workers: Any = None, past: Hour | None = None, **memory: str) -> list[str]:
    found = findings(queues, [worker()] if workers is None else workers, past or hour(), memory, NOW, max_depth=100)
    return [one.kind for one in found]


def test_what_needs_attention_is_found_the_worst_first() -> None:
    assert kinds(queue()) == []
    assert kinds(queue(waits={5: 1.0}), workers=()) == ["no_workers"]
    assert kinds(queue("mail", waits={5: 1.0})) == ["not_served"]
    assert kinds(queue(waits={5: 61.0})) == ["slow"]
    assert kinds(queue(depth=90)) == ["full"]
    assert kinds(queue(paused={"by": "anna"}, waits={5: 600.0})) == ["paused"]
    assert kinds(workers=(worker(heartbeat_at=NOW - 20), worker(abandoned_threads=1))) == ["late", "stuck"]
    assert kinds(maxmemory_policy="allkeys-lru") == ["evicts"]
    assert kinds(maxmemory="100", used_memory="90") == ["memory"]
    failing = {"succeeded": 50, "retried": 10, "dead_lettered": 5}
    assert kinds(queue(), past=hour(default=failing)) == ["failing", "dead"]
    assert kinds(queue(), past=hour(default={"retried": 9})) == [], "nine say nothing yet"
    assert kinds(queue(waits={5: 61.0}), queue("b", depth=99), workers=()) == ["no_workers", "full", "slow"]


def test_findings_of_one_queue_stand_together() -> None:
    past = hour(default={"succeeded": 50, "retried": 10, "dead_lettered": 5})
    groups = by_subject(findings([queue(), queue("mail", waits={5: 1.0})], [worker()], past, {}, NOW, max_depth=100))
    assert [[one.kind for one in group] for group in groups] == [["not_served"], ["failing", "dead"]]
    assert groups[0][0].severe


@pytest.mark.parametrize(
    ("waits", "starved"),
    [
        ({9: 1.0, 0: 10.0}, [0]),
        ({9: 20.0, 0: 10.0}, []),
        ({9: 1.0, 0: 4.0}, []),
        ({0: 100.0}, []),
        ({9: 0.1, 5: 6.0, 0: 7.0}, [5, 0]),
    ],
)  # fmt: skip
def test_prio_01_a_band_is_starved_when_what_came_later_above_it_is_served_first(
    waits: dict[int, float | None], starved: list[int]
) -> None:
    assert starved_bands(queue(waits=waits)) == starved
    assert starved_bands(queue(waits=waits, paused={"by": "x"})) == []
