"""Dead letters, failures, message queues; and what is done to many at once: asked, confirmed, carried on, told."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dtq.audit import AuditFilter
from dtq.model import ErrorInfo, Outcome
from dtq.redisio import Server
from dtq.signature import common_text, signature
from dtq.states import Disposition, Status
from tests.support.dashboard import fragments, page, post, said
from tests.support.web import Api


@pytest.fixture
def api(dashboard: Api, server: Server) -> Api:
    """An application over an empty server."""
    return replace(dashboard, http=dashboard.app.test_client())


REFUSED = ErrorInfo("OSError", "refused")


def bury(api: Api, number: int, error: ErrorInfo = REFUSED, **fields: Any) -> list[str]:
    """Make dead letters; return their ids in the order of their deaths."""
    queue = fields.get("queue", "default")
    for _ in range(number):
        api.post(**fields)
    claims = []
    while len(claims) < number:
        claims += api.client.broker.claim(api.worker_id, [queue], 100).claims
    for start in range(0, number, 100):
        outcomes = [
            Outcome(claim=claim, kind="dead", reason="permanent", error=error, disposition=Disposition.FAILED)
            for claim in claims[start : start + 100]
        ]
        api.client.broker.commit(api.worker_id, outcomes)
    return [claim.task_id for claim in claims]


def statuses(api: Api) -> dict[str, int]:
    return {status.value: number for status, number in api.client.queries.counts("default").items() if number}


# --- dead letters -----------------------------------------------------------------------------------------------------


def test_dead_letters_are_found_by_the_query_and_what_does_not_fit_them_is_told(api: Api) -> None:
    bury(api, 2)
    other = bury(api, 1, ErrorInfo("TimeoutError", "too late"), queue="mail")[0]
    for query in ("class:TimeoutError", "queue:mail", "error:late", "late", "reason:permanent queue:mail"):
        assert re.findall(r'<tr data-href="/tasks/(\w+)"', page(api, f"/dead?q={query}")) == [other], query
    html = page(api, "/dead?q=tag:x")
    assert "dead letters are not filtered by this" in html
    assert "all that match" not in html, "what is not understood must not widen what is done"
    assert "by a whole type" in page(api, "/dead?q=type:a*")
    assert "Nothing matches" in page(api, "/dead?q=queue:nobody")


def test_the_pages_of_dead_letters_follow_each_other(api: Api) -> None:
    ids = bury(api, 55)
    html = page(api, "/dead")
    seen = re.findall(r'<tr data-href="/tasks/(\w+)"', html)
    next_page = re.search(r'rel="next" href="([^"]+)"', html)
    assert next_page is not None
    seen += re.findall(r'<tr data-href="/tasks/(\w+)"', page(api, next_page[1].replace("&amp;", "&")))
    assert seen == ids[::-1]
    assert re.findall(r'<tr data-href="/tasks/(\w+)"', page(api, "/dead?cursor=nonsense")) == seen[:50]


# --- many at once -----------------------------------------------------------------------------------------------------


def test_selected_ones_are_shown_before_and_told_after(api: Api) -> None:
    ids = bury(api, 5)
    chosen = "&".join(f"id={one}" for one in ids[:3])
    html = page(api, f"/dead/bulk?action=requeue&{chosen}")
    assert "Requeue 3 dead letters" in html
    assert "These tasks run again from the start." in html
    assert all(one[-8:] in html for one in ids[:3])
    assert statuses(api) == {"dead_lettered": 5}, "asking changes nothing"
    response = post(api, "/dead/bulk", action="requeue", id=ids[:3], to="/dead?q=", reason="fixed")
    assert (response.status_code, response.headers["Location"]) == (303, "/dead?q=")
    assert said(api, "/dead") == "Requeued 3 tasks."
    assert statuses(api) == {"queued": 3, "dead_lettered": 2}
    post(api, "/dead/bulk", action="discard", id=ids[2:4], to="/dead")
    assert said(api, "/dead") == "Discarded 1 task; 1 had changed before."
    (entry,) = api.client.queries.audit(AuditFilter(action="dlq.requeue"), 5).entries
    assert (entry.count, entry.reason) == (3, "fixed")


def test_nothing_selected_is_nothing_done(api: Api) -> None:
    bury(api, 2)
    for path in (
        "/dead/bulk",
        "/dead/bulk?action=requeue",
        "/dead/bulk?action=requeue&id=zz",
        "/dead/bulk?action=x&all=1",
    ):
        assert api.http.get(path, headers={"Accept": "text/html"}).status_code == 303
        assert "Select some dead letters first" in said(api, "/dead")
    for form in ({"action": "requeue"}, {"action": "x", "all": "1"}, {"action": "discard", "all": "1", "q": "tag:x"}):
        post(api, "/dead/bulk", **form)
        assert "Nothing was selected" in said(api, "/dead")
    assert statuses(api) == {"dead_lettered": 2}


def test_selected_tasks_are_cancelled_and_those_that_ended_are_left(api: Api) -> None:
    ids = [api.post()["task_id"] for _ in range(4)]
    api.succeed(api.claim())
    chosen = "&".join(f"id={one}" for one in ids[:3])
    html = page(api, f"/tasks/cancel?{chosen}")
    assert "Cancel 2 tasks" in html
    assert "1 of the selected has ended already" in html
    response = post(api, "/tasks/cancel", id=ids[:3], to="/tasks?q=status:queued", reason="by mistake")
    assert response.headers["Location"] == "/tasks?q=status:queued"
    assert "Cancelled 2 tasks; 1 had ended before." in said(api)
    assert statuses(api) == {"succeeded": 1, "cancelled": 2, "queued": 1}
    assert api.http.get("/tasks/cancel").status_code == 303
    assert "Select some tasks first" in said(api)


def test_all_tasks_that_match_are_counted_shown_typed_and_cancelled_with_progress(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [api.post(task_type="mail")["task_id"] for _ in range(6)]
    other = api.post()["task_id"]
    api.succeed(api.claim())
    html = page(api, "/tasks?q=type:mail")
    assert "5 unfinished match:" in html
    assert "cancel-all" not in page(api, "/tasks?q=status:succeeded"), "there is nothing that has not ended"
    assert "cancel-all" not in page(api, "/tasks?q=type:mail+colour:red")
    found = re.search(r'<a class="button danger" href="(/tasks/cancel-all[^"]+)"', html)
    assert found is not None
    html = page(api, found[1].replace("&amp;", "&"))
    assert "Cancel 5 tasks" in html
    assert "What has ended is passed over." in html
    assert all(one[-8:] in html for one in ids[1:])
    assert "1 task that matches has ended already" in page(api, "/tasks/cancel-all?q=queue:default")
    assert statuses(api) == {"queued": 6, "succeeded": 1}, "asking changes nothing"
    form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', html))
    late = api.post(task_type="mail")["task_id"]
    monkeypatch.setattr("dtq.web.dashboard.cancel.TYPED_ABOVE", 3)
    for number, shown in (("", "5"), ("4", "5"), ("3", "3"), ("x", "x")):
        post(api, "/tasks/cancel-all", **{**form, "shown": shown, "number": number})
        assert "Nothing was done" in said(api), (number, shown)
    post(api, "/tasks/cancel-all", **{**form, "q": "colour:red", "number": "5"})
    assert "not understood" in said(api)
    assert statuses(api) == {"queued": 7, "succeeded": 1}
    response = post(api, "/tasks/cancel-all", **form, number="5", reason="by mistake")
    assert response.headers["Location"] == "/tasks?q=type:mail"
    assert said(api) == "Cancelled 5 tasks."
    assert [api.get(one)["status"] for one in (other, late)] == ["queued", "queued"], (
        "what came later was not confirmed"
    )
    assert api.get(ids[1])["reason"] == "by mistake"
    monkeypatch.undo()
    response = post(api, "/tasks/cancel-all", q="", rate="10")
    html = page(api, response.headers["Location"])
    assert "of 2" in html
    assert "10 a second" in html
    post(api, f"{response.headers['Location']}/abort")
    assert "Cancelled" in page(api, "/bulk")


def test_all_that_match_and_no_others(api: Api) -> None:
    bury(api, 8)
    bury(api, 4, ErrorInfo("TimeoutError", "too late"))
    html = page(api, "/dead/bulk?action=discard&all=1&q=class:TimeoutError")
    assert "Discard 4 dead letters" in html
    assert "These tasks are given up." in html
    post(api, "/dead/bulk", action="discard", all="1", q="class:TimeoutError", to="/dead")
    assert "Discarded 4 tasks" in said(api, "/dead")
    assert api.client.queries.dead_letters.size() == 8


def test_above_a_thousand_the_number_is_typed_and_progress_is_shown(
    api: Api, wait_until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(api, 1100)
    assert "Type 1,100 to confirm" in page(api, "/dead/bulk?action=requeue&all=1")
    post(api, "/dead/bulk", action="requeue", all="1")
    assert "Nothing was done" in said(api, "/dead")
    assert statuses(api) == {"dead_lettered": 1100}
    response = post(api, "/dead/bulk", action="requeue", all="1", number="1,100", rate="1000")
    path = response.headers["Location"]
    assert re.fullmatch(r"/bulk/[0-9a-f]{32}", path)
    html = page(api, path)
    assert "of 1,100" in html
    assert "1,000 a second" in html
    api.app.extensions["dtq"].bulk.start()
    wait_until(lambda: statuses(api).get("queued", 0) > 10, what="some of it")
    assert "Let it go no further" in fragments(api, path)["job"]
    post(api, f"{path}/abort", back=path)
    assert "It goes no further." in said(api, path)
    wait_until(lambda: "aborted" in page(api, path), what="the end")
    assert re.search(r"Requeued \d+", page(api, "/bulk"))
    assert statuses(api)["dead_lettered"] > 0
    assert "no such bulk job" in page(api, "/bulk/zz", 404).lower()


def test_dash_07_a_purge_needs_the_name_of_the_queue_typed(api: Api) -> None:
    for _ in range(3):
        api.post()
    running = api.claim()
    html = page(api, "/queues/default/purge")
    assert "That is 2 tasks." in html
    assert "Type default to confirm" in html
    for typed in ("", "defaul", "DEFAULT"):
        post(api, "/queues/default/purge", name=typed)
        assert "Nothing was done" in said(api)
    assert statuses(api) == {"queued": 2, "running": 1}
    response = post(api, "/queues/default/purge", name="default")
    assert response.headers["Location"] == "/queues/default"
    assert said(api) == "Cancelled 2 tasks."
    assert api.get(running.task_id)["status"] == "running"
    assert "nothing to purge" in page(api, "/queues/default/purge")


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "common"),
    [
        (("row 12: price is 'a'", "row 4711: price is 'bb'"), "OSError: row …: price is …"),
        (("no task 0198f3c2aa7d", "no task 0198f3c2aa7e"), "OSError: no task …"),
        (("at 0x7f3a", "at 0x7f3b"), "OSError: at …"),
        (("user 2b1b6a52-7c3d-4a5e-9f10-aaaaaaaaaaaa gone", "user 2b1b6a52-7c3d-4a5e-9f10-bbbbbbbbbbbb gone"),
         "OSError: user … gone"),
        (("refused\nsecond line 1", "refused\nother"), "OSError: refused"),
        (("", ""), "OSError"),
    ],
)  # fmt: skip
def test_errors_that_differ_in_numbers_and_names_are_one(messages: tuple[str, str], common: str) -> None:
    assert {signature("OSError", message) for message in messages} == {common}


def test_what_errors_have_in_common_finds_them(api: Api) -> None:
    assert common_text("ValueError: row …: price is not a number: …", "ValueError") == ": price is not a number:"
    for number in (1, 22, 333):
        bury(api, 1, ErrorInfo("ValueError", f"row {number}: price is not a number: 'n/a'"), task_type="import")
    bury(api, 2, ErrorInfo("ValueError", "something else"), queue="mail")
    api.post()
    claim = api.claim()
    error = ErrorInfo("ValueError", "row 4: price is not a number: 'x'")
    outcome = Outcome(claim=claim, kind="retry", delay_ms=60_000, error=error, disposition=Disposition.FAILED)
    api.client.broker.commit(api.worker_id, [outcome])
    html = page(api, "/failures")
    first = html[html.index("<tbody>") : html.index("</tr>", html.index("<tbody>"))]
    assert "ValueError: row …: price is not a number: …" in first
    assert 'data-label="Dead">3<' in first
    assert 'data-label="Retrying">1<' in first
    assert "5 dead letters and 1 task to be tried again" in html
    found = re.search(r'hx-get="(/dead/bulk[^"]+)"', first)
    assert found is not None
    assert "Requeue 3 dead letters" in page(api, found[1].replace("&amp;", "&"))
    assert "something else" not in page(api, "/failures?q=queue:default")


def test_only_so_many_failures_are_looked_at_and_that_is_said(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtq.web.dashboard.failures.DEAD_LOOKED_AT", 10)
    monkeypatch.setattr("dtq.web.dashboard.failures._dead.__defaults__", (10,))
    monkeypatch.setattr("dtq.web.dashboard.failures.A_READ", 5)
    bury(api, 25)
    assert "The newest 10 of 25 dead letters" in page(api, "/failures")


# --- what is hidden ---------------------------------------------------------------------------------------------------


def test_what_is_hidden_is_revealed_once_and_the_audit_says_to_whom(api: Api) -> None:
    task = api.post(payload={"password": "hunter2-Zq"})
    path = f"/tasks/{task['task_id']}"
    assert "hunter2-Zq" not in page(api, path)
    response = post(api, f"{path}/reveal")
    assert response.status_code == 200
    assert "hunter2-Zq" in response.text
    assert "1 value is revealed" in response.text
    assert "hunter2-Zq" not in page(api, path)
    (entry,) = api.client.queries.audit(AuditFilter(action="task.reveal"), 5).entries
    assert entry.target == task["task_id"]
    assert task["task_id"] in page(api, "/audit")


# --- message queues ---------------------------------------------------------------------------------------------------


def test_message_queues_are_shown_paused_purged_and_their_dead_requeued(api: Api) -> None:
    assert "No message queues." in page(api, "/messages")
    queue = api.client.queue("commands", max_deliveries=1, visibility_timeout_s=0.2)
    queue.put("retry", b'{"token": "s3cret", "run": "<b>7</b>"}', key="k<1>")
    queue.put("retry", b"plain \xff text")
    queue.put("later", b"x", delay_s=60)
    assert 'href="/messages/commands"' in page(api, "/messages")
    html = page(api, "/messages/commands")
    assert 'data-label="Waiting">2<' in html
    assert 'data-label="Delayed">1<' in html
    html = page(api, "/messages/commands/retry")
    assert "s3cret" not in html
    assert "&lt;b&gt;7&lt;/b&gt;" in html
    assert "k&lt;1&gt;" in html
    assert "plain \\xff text" in html
    post(api, "/messages/commands/retry/pause", back="/messages/commands")
    assert "is paused" in said(api, "/messages/commands")
    assert "paused</span>" in page(api, "/messages/commands")
    post(api, "/messages/commands/retry/resume")
    with queue.subscribe(["retry"]) as subscription:
        subscription.receive(5).release()
        subscription.receive(5).release()
    post(api, "/messages/commands/later/purge", name="late")
    assert "Nothing was done" in said(api)
    post(api, "/messages/commands/later/purge", name="later")
    assert "Removed 1 message of later." in said(api)
    assert "no message queue nobody" in page(api, "/messages/nobody", 404)
    assert "no such topic" in page(api, "/messages/commands/a%20b", 404)


def test_a_dead_message_waits_again_when_it_is_asked_to(api: Api, wait_until: Callable[..., Any]) -> None:
    queue = api.client.queue("commands", max_deliveries=1)
    queue.put("retry", b"x", key="k")
    with queue.subscribe(["retry"]) as subscription:
        subscription.receive(5).release()
        wait_until(queue.dead.list, what="its second delivery, which is one too many")
    html = page(api, "/messages/commands/dead")
    assert "/messages/commands/dead/requeue" in html
    post(api, "/messages/commands/dead/requeue", key="k")
    assert "It waits again" in said(api)
    post(api, "/messages/commands/dead/requeue", key="k")
    assert "no such dead message" in said(api)
    assert queue.stats().topics["retry"].waiting == 1
    assert api.client.queries.counts("default")[Status.QUEUED] == 0
