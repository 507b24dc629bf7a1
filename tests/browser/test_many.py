"""In a browser: what is done to many tasks. Selected, or all that match; counted, shown, confirmed, followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dtq.client import Client
from dtq.states import Status
from dtq.taskfilter import TaskFilter
from tests.browser.driver import url_of
from tests.support.web_server import WebServer
from tests.support.workers import WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser"), pytest.mark.timeout(240)]


def left(client: Client, status: Status = Status.QUEUED, queue: str = "default") -> int:
    return client.queries.counts(queue)[status]


def test_selected_tasks_are_cancelled(open_page: Callable[..., Any], client: Client) -> None:
    ids = [client.submit("echo_task").task_id for _ in range(6)]
    page = open_page("/tasks")
    assert not page.locator(".bulk-bar").is_visible(), "with nothing selected nothing is in the way"
    page.check(f"#t-{ids[1]} input")
    page.click(f"#t-{ids[3]} input", modifiers=["Shift"])
    assert page.inner_text("#chosen") == "3 selected"
    page.click("button[data-needs-rows]")
    assert page.inner_text("dialog h1") == "Cancel 3 tasks"
    assert page.locator("dialog .samples li").count() == 3
    page.keyboard.press("Escape")
    assert not page.locator("dialog[open]").count()
    assert left(client) == 6
    page.click("button[data-needs-rows]")
    page.fill("dialog input[name=reason]", "wrong week")
    page.click("dialog .filled")
    page.wait_for_selector(".toast >> text=Cancelled 3 tasks.")
    assert left(client) == 3
    assert client.get(ids[2]).reason == "wrong week"


def test_what_changes_meanwhile_stays_selected_and_is_told_before_confirming(
    open_page: Callable[..., Any], client: Client
) -> None:
    ids = [client.submit("echo_task").task_id for _ in range(4)]
    page = open_page("/tasks")
    for task_id in ids[:3]:
        page.check(f"#t-{task_id} input")
    client.cancel(ids[1])
    page.wait_for_selector(f"#t-{ids[1]} .badge.s-cancelled")
    client.submit("echo_task")
    page.wait_for_selector("#newer >> text=1 new, show")
    assert page.locator("input[name=id]:checked").count() == 3
    assert page.inner_text("#chosen") == "3 selected"
    page.click("button[data-needs-rows]")
    assert page.inner_text("dialog h1") == "Cancel 2 tasks"
    assert "1 of the selected has ended already" in page.inner_text("dialog")


def test_all_that_match_are_cancelled_at_the_speed_that_was_chosen(
    open_page: Callable[..., Any], client: Client
) -> None:
    client.submit_many([{"task_type": "mail"}] * 60)
    other = client.submit("echo_task")
    page = open_page("/tasks?q=type:mail")
    page.check("#task-rows tr:first-child input")
    assert "all unfinished that match" in page.inner_text(".bulk-bar")
    page.click(".bulk-bar >> text=Cancel all…")
    assert page.inner_text("dialog h1") == "Cancel 60 tasks"
    assert "type:mail" in page.inner_text("dialog")
    assert page.locator("dialog .samples .mono").all_inner_texts() == ["mail"] * 5
    assert "and 55 more" in page.inner_text("dialog .samples")
    page.click("dialog >> text=Leave them")
    assert left(client) == 61, "asking changes nothing"
    page.click(".bulk-bar >> text=Cancel all…")
    client.submit("mail")
    page.select_option("dialog select[name=rate]", "50")
    page.click("dialog .filled")
    page.wait_for_url("**/bulk/*")
    page.wait_for_selector("#job >> text=50 a second")
    page.wait_for_selector("#job >> text=Cancelled 60 tasks.")
    page.wait_for_selector("#job .badge.s-succeeded")
    assert page.locator("#job button").count() == 0, "what is done cannot be stopped"
    assert left(client) == 2, "what came later was not confirmed"
    assert client.get(other.task_id).status is Status.QUEUED
    page.go_back()
    page.wait_for_url("**/tasks?q=type:mail")


def test_above_a_thousand_the_number_is_typed_and_a_job_can_be_stopped(
    open_page: Callable[..., Any], client: Client
) -> None:
    for _ in range(3):
        client.submit_many([{"task_type": "mail", "queue": "mail"}] * 400)
    page = open_page("/tasks?q=queue:mail")
    page.check("#task-rows tr:first-child input")
    assert "1,200 unfinished match" in page.inner_text(".bulk-bar")
    page.click(".bulk-bar >> text=Cancel all…")
    page.fill("dialog input[name=number]", "1,100")
    page.click("dialog .filled")
    page.wait_for_selector(".toast.failed >> text=Nothing was done")
    assert left(client, queue="mail") == 1200
    page.check("#task-rows tr:first-child input")
    page.click(".bulk-bar >> text=Cancel all…")
    page.fill("dialog input[name=number]", "1,200")
    page.select_option("dialog select[name=rate]", "10")
    page.click("dialog .filled")
    page.wait_for_url("**/bulk/*")
    page.wait_for_selector(r"#job .job-state >> text=/[1-9]\d* of 1,200/")
    page.click("text=Let it go no further")
    page.wait_for_selector(".toast >> text=It goes no further.")
    page.wait_for_selector("#job >> text=aborted")
    assert 0 < left(client, queue="mail") < 1200
    page.goto(page.url.rpartition("/")[0])
    page.wait_for_selector("tbody >> text=aborted")


def test_what_fails_alike_is_requeued_or_discarded_together(
    open_page: Callable[..., Any], client: Client, web: WebServer, worker: WorkerProcess, wait_until: Callable[..., Any]
) -> None:
    fails = [("refused", 4), ("too late", 3)]
    for message, number in fails:
        client.submit_many([{"task_type": "permanent_fail_task", "payload": {"message": message}}] * number)
    wait_until(lambda: client.queries.dead_letters.size() == 7, what="the dead letters", timeout_s=20)
    worker.kill()
    page = open_page("/failures")
    page.click("tr:has-text('refused') >> text=Requeue…")
    assert page.inner_text("dialog h1") == "Requeue 4 dead letters"
    page.click("dialog .primary")
    page.wait_for_selector(".toast >> text=Requeued 4 tasks.")
    assert page.url == url_of(web, "/failures")
    page.goto(url_of(web, "/dead?q=error:late"))
    page.click(".bulk-bar >> text=Discard all…")
    assert page.inner_text("dialog h1") == "Discard 3 dead letters"
    page.click("dialog .filled")
    page.wait_for_selector(".toast >> text=Discarded 3 tasks.")
    assert "Nothing matches" in page.inner_text("main")
    assert client.queries.dead_letters.size() == 0
    assert len(client.tasks(TaskFilter(status=Status.FAILED)).tasks) == 3


def test_a_purge_needs_the_name(open_page: Callable[..., Any], client: Client, web: WebServer) -> None:
    client.submit_many([{"task_type": "echo_task", "queue": "mail"}] * 3)
    messages = client.queue("commands")
    messages.put("retry", b"1")
    page = open_page("/queues/mail")
    for path, name, said in (
        ("/queues/mail", "mail", "Cancelled 3 tasks."),
        ("/messages/commands", "retry", "Removed 1 message of retry."),
    ):
        page.goto(url_of(web, path))
        page.click("text=Purge…")
        page.fill("dialog input[name=name]", name[:-1])
        page.click("dialog .filled")
        page.wait_for_timeout(200)
        if page.locator("dialog[open]").count() == 0:
            page.wait_for_selector(".toast.failed >> text=Nothing was done")
            page.click("text=Purge…")
        page.fill("dialog input[name=name]", name)
        page.click("dialog .filled")
        page.wait_for_selector(f".toast.done >> text={said}")
    assert left(client, queue="mail") == 0
    assert messages.stats().topics["retry"].waiting == 0
