"""The dashboard in a real browser, over a real web server and a real worker: what is done, and that it is live."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from dtq.apikeys import create_key
from dtq.client import Client
from tests.browser.driver import LIVE, PATIENCE_MS, submit, url_of
from tests.support.servers import ServerProcess, find_program
from tests.support.web_server import WebServer, running_web
from tests.support.workers import WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser"), pytest.mark.timeout(240)]


def test_no_page_of_an_empty_server_stumbles(open_page: Callable[..., Any]) -> None:
    page = open_page("/")
    start = page.url.rstrip("/")
    for path in ("queues", "tasks", "failures", "dead", "workers", "messages", "events", "audit", "bulk", "settings"):
        assert page.goto(f"{start}/{path}").ok
        assert page.inner_text("h1")
        assert open_page.said == [], path


# --- doing ------------------------------------------------------------------------------------------------------------


def test_a_task_is_submitted_and_its_page_follows_it_to_its_end(
    open_page: Callable[..., Any], worker: WorkerProcess
) -> None:
    page = open_page("/")
    submit(page, "slow_task", '{"seconds": 1.5}')
    assert "Submitted." in page.inner_text("#toasts")
    page.wait_for_selector("#head .badge.s-running")
    page.wait_for_selector("#story >> text=done: step")
    page.wait_for_selector("#head .badge.s-succeeded")
    assert "It succeeded" in page.inner_text("#story")
    assert page.locator(".lane-bar rect.s-succeeded").count() == 1


def test_a_running_task_is_cancelled(open_page: Callable[..., Any], worker: WorkerProcess) -> None:
    page = open_page("/")
    task_id = submit(page, "sleep_task", '{"seconds": 60}')
    page.wait_for_selector("#head .badge.s-running")
    page.click("#head >> text=Cancel")
    page.wait_for_selector(".toast >> text=asked to cancel it")
    page.wait_for_selector("#head .badge.s-cancelled")
    assert page.url.endswith(task_id), "the page was swapped, not left"


def test_the_list_keeps_its_rows_and_says_what_is_new(
    open_page: Callable[..., Any], client: Client, worker: WorkerProcess
) -> None:
    first = client.submit("slow_task", {"seconds": 1})
    page = open_page("/tasks")
    second = client.submit("echo_task")
    page.wait_for_selector("#newer >> text=1 new, show")
    assert page.locator("#task-rows tr").count() == 1, "nothing is pushed under the eyes of who reads"
    page.wait_for_selector(f"#t-{first.task_id} .badge.s-succeeded")
    page.click("#newer a")
    page.wait_for_selector(f"#t-{second.task_id}")
    page.wait_for_selector("#chips >> text=succeeded 2")


@pytest.mark.parametrize("late", ["site.js", "hx-ws.min.js"])
def test_a_script_that_comes_late_leaves_no_page_dead(browser: Any, web: WebServer, late: str) -> None:
    page = browser.new_page()

    def hold(route: Any) -> None:
        page.wait_for_timeout(1500)
        route.continue_()

    page.route(re.compile(re.escape(late)), hold)
    page.goto(f"http://127.0.0.1:{web.port}/tasks")
    page.wait_for_selector(LIVE, timeout=PATIENCE_MS)
    page.close()


def test_a_queue_is_paused_and_resumed_where_it_stands(open_page: Callable[..., Any], client: Client) -> None:
    client.submit("echo_task", queue="mail")
    page = open_page("/queues")
    page.click("tr:has-text('mail') >> text=Pause")
    page.wait_for_selector("tr:has-text('mail') .badge.s-paused")
    page.wait_for_selector(".toast >> text=mail is paused")
    assert client.queries.queue("mail").paused is not None
    page.click("tr:has-text('mail') >> text=Resume")
    page.wait_for_selector(".toast >> text=mail goes on")
    page.wait_for_selector("tr:has-text('mail') .badge.s-paused", state="detached")


def test_many_dead_letters_are_requeued_after_a_look_at_them(
    open_page: Callable[..., Any], client: Client, worker: WorkerProcess, wait_until: Callable[..., Any]
) -> None:
    client.submit_many([{"task_type": "permanent_fail_task", "payload": {"message": f"row {n}"}} for n in range(8)])
    wait_until(lambda: client.queries.dead_letters.size() == 8, what="the dead letters", timeout_s=20)
    worker.kill()
    page = open_page("/dead")
    boxes = page.locator("input[name=id]")
    boxes.nth(1).click()
    boxes.nth(4).click(modifiers=["Shift"])
    assert page.inner_text("#chosen") == "4 selected"
    page.click("button[name=action][value=requeue]")
    assert page.inner_text("dialog h1") == "Requeue 4 dead letters"
    assert page.locator("dialog .samples li").count() == 4
    page.click("dialog .button.primary")
    page.wait_for_selector(".toast >> text=Requeued 4 tasks.")
    assert page.locator("input[name=id]").count() == 4
    page.click("text=Discard all…")
    assert "Discard 4 dead letters" in page.inner_text("dialog h1")
    page.click("dialog >> text=Leave it")
    assert not page.locator("dialog[open]").count()
    assert client.queries.dead_letters.size() == 4


def test_who_signs_in_sees_what_the_role_allows(
    open_page: Callable[..., Any], redis: ServerProcess, client: Client, tmp_path: Any
) -> None:
    keys = {role: create_key(tmp_path / "keys", role, role) for role in ("read", "admin")}  # type: ignore[arg-type]
    settings = {"api_keys_file": tmp_path / "keys", "protect": "all", "web_threads": 8, "max_websockets": 4}
    client.submit("echo_task")
    with running_web(redis.url, **settings) as server:
        page = open_page("/queues", port=server.port, live=False)
        assert page.inner_text("h1") == "Sign in"
        page.fill("input[name=key]", "wrong")
        page.press("input[name=key]", "Enter")
        page.wait_for_selector("#fault")
        for role, key in keys.items():
            page.fill("input[name=key]", key)
            page.press("input[name=key]", "Enter")
            page.wait_for_selector(LIVE)
            page.goto(url_of(server, "/queues"))
            assert page.locator("text=Pause").count() == (1 if role == "admin" else 0)
            page.click(".prefs summary")
            page.click("text=Sign out")
            page.wait_for_selector("h1 >> text=Sign in")
        page.context.close()
    said = open_page.said  # type: ignore[attr-defined]
    assert all("403" in line for line in said), said
    said.clear()


# --- live -------------------------------------------------------------------------------------------------------------


def test_a_page_comes_alive_again_after_the_web_was_restarted(
    open_page: Callable[..., Any], redis: ServerProcess, client: Client
) -> None:
    with running_web(redis.url, web_threads=8, max_websockets=4) as server:
        page = open_page("/", port=server.port)
        server.process.kill()
        server.process.wait()
        client.submit("echo_task", queue="meanwhile")
        page.wait_for_selector("#live >> text=catching up")
        server.process = server.start_process()
        server.wait_until_up()
        page.wait_for_selector("#queues >> text=meanwhile", timeout=30_000)
        page.wait_for_selector(LIVE)
        page.context.close()
    open_page.said.clear()  # type: ignore[attr-defined]  # the browser says of each try that it failed


def test_while_redis_is_away_the_dot_says_so_and_then_the_page_goes_on(
    open_page: Callable[..., Any], client: Client
) -> None:
    program = find_program("valkey")
    assert program is not None
    process = ServerProcess(program, aof=True).start()
    try:
        with running_web(process.url, web_threads=8, max_websockets=4) as server:
            page = open_page("/", port=server.port)
            process.stop()
            page.wait_for_selector("#live >> text=Redis is away")
            process.start()
            page.wait_for_selector(LIVE)
            page.context.close()
    finally:
        process.remove()
    open_page.said.clear()  # type: ignore[attr-defined]


def test_where_no_socket_gets_through_a_page_asks_again_and_again(
    open_page: Callable[..., Any], client: Client
) -> None:
    page = open_page("/queues", live=False)
    page.route_web_socket(re.compile("/ws/"), lambda socket: socket.close(code=1013))
    page.reload()
    client.submit("echo_task", queue="asked-for")
    page.wait_for_selector("#queue-rows >> text=asked-for")
    assert page.inner_text("#live") == "every 5 s"
    open_page.said.clear()  # type: ignore[attr-defined]


def test_nothing_moves_under_the_pointer(open_page: Callable[..., Any], client: Client) -> None:
    client.submit_many([{"task_type": "echo_task"}] * 5)
    page = open_page("/events")
    rows = page.locator("#event-rows tbody tr")
    page.hover("#event-rows tbody tr:nth-child(3)")
    client.submit_many([{"task_type": "echo_task"}] * 3)
    page.wait_for_timeout(1500)
    assert rows.count() == 5
    page.mouse.move(5, 5)
    page.mouse.move(8, 8)
    page.wait_for_selector("#event-rows tbody tr:nth-child(8)")
