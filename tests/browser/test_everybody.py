"""The dashboard in a real browser, for everybody: hostile text, no script, the keyboard, narrow windows, axe-core."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dtq.client import Client
from tests.browser.driver import LIVE, PATHS, submit, url_of, violations
from tests.support.web_server import WebServer
from tests.support.workers import WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser"), pytest.mark.timeout(240)]


HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def test_dash_05_a_hostile_payload_stays_text(
    open_page: Callable[..., Any], web: WebServer, worker: WorkerProcess
) -> None:
    page = open_page("/")
    task_id = submit(page, "permanent_fail_task", json.dumps({"message": HOSTILE}), tags=HOSTILE[:60])
    page.wait_for_selector("#head .badge.s-dead_lettered")
    for path in (f"/tasks/{task_id}", "/", "/tasks", "/dead", "/failures", "/events", "/audit"):
        page.goto(url_of(web, path))
        page.wait_for_timeout(300)  # what is pushed is as harmless as what was sent
        assert "owned" not in page.title(), path
        assert page.locator("main img, main script").count() == 0, path
        assert ("<img src=x" in page.inner_text("main")) is (path not in ("/events", "/audit"))


def test_without_a_script_every_page_reads_and_every_form_works(open_page: Callable[..., Any], client: Client) -> None:
    page = open_page("/", live=False, java_script_enabled=False)
    task_id = submit(page, "echo_task", '{"a": 1}', queue="mail")
    assert "Submitted." in page.inner_text("#toasts")
    page.click("#head >> text=Cancel")
    assert "The task is cancelled." in page.inner_text("#toasts")
    assert page.locator("#head .badge.s-cancelled").count() == 1
    page.click("nav >> text=Queues")
    page.click("tr:has-text('mail') >> text=Pause")
    assert "mail is paused" in page.inner_text("#toasts")
    page.fill("#find", task_id)
    page.press("#find", "Enter")
    assert page.url.endswith(f"/tasks/{task_id}")
    page.click(".prefs summary")
    page.check("input[name=theme][value=dark]")
    page.click(".prefs >> text=Keep")
    assert page.locator("html[data-theme=dark]").count() == 1


def test_without_a_script_many_are_cancelled_too(open_page: Callable[..., Any], web: WebServer, client: Client) -> None:
    page = open_page("/", live=False, java_script_enabled=False)
    tasks = [client.submit("echo_task", queue="mail") for _ in range(4)]
    page.goto(url_of(web, "/tasks"))
    page.check(f"#t-{tasks[1].task_id} input")
    page.click("text=Cancel…")
    assert page.inner_text("h1") == "Cancel 1 task"
    page.click(".ask button")
    assert "Cancelled 1 task." in page.inner_text("#toasts")
    page.click("text=Cancel all…")
    assert page.inner_text("h1") == "Cancel 3 tasks"
    page.fill("input[name=reason]", "by mistake")
    page.click(".ask button")
    assert "Cancelled 3 tasks." in page.inner_text("#toasts")
    page.click("#toasts >> text=See the job")
    assert "by mistake" in page.inner_text("#job")
    page.goto(url_of(web, "/queues/mail/purge"))
    assert "nothing to purge" in page.inner_text(".ask")


def test_everything_is_within_reach_of_the_keyboard(
    open_page: Callable[..., Any], web: WebServer, client: Client
) -> None:
    ids = [client.submit("echo_task").task_id for _ in range(3)]
    page = open_page("/")
    places = {"q": "/queues", "f": "/failures", "d": "/dead", "w": "/workers", "m": "/messages", "e": "/events",
              "a": "/audit", "s": "/settings", "o": "/", "t": "/tasks"}  # fmt: skip
    for key, path in places.items():
        page.keyboard.type(f"g{key}")
        page.wait_for_url(url_of(web, path))
    page.wait_for_selector(LIVE)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.locator("tr.at").get_attribute("id") == f"t-{ids[1]}"
    page.keyboard.press("x")
    assert page.locator("input[name=id]:checked").get_attribute("value") == ids[1]
    page.keyboard.press("x")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/tasks/{ids[2]}")
    page.keyboard.press("?")
    assert page.locator("#keys[open]").count() == 1
    page.keyboard.press("Escape")
    page.go_back()
    page.wait_for_url("**/tasks")
    page.wait_for_selector(LIVE)
    page.keyboard.press("p")
    page.wait_for_selector("#live >> text=paused")
    page.keyboard.press("p")
    page.wait_for_selector(LIVE)
    page.focus("body")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", "focus can be seen"


def test_the_keyboard_turns_pages_and_back_leads_where_it_came_from(
    open_page: Callable[..., Any], client: Client
) -> None:
    client.submit_many([{"task_type": f"type{number % 2}"} for number in range(120)])
    page = open_page("/tasks")
    page.fill("#q", "type:type1")
    page.press("#q", "Enter")
    page.wait_for_url("**/tasks?q=type%3Atype1")
    first = page.locator("#task-rows tr").first.get_attribute("id")
    page.focus("main")
    page.keyboard.press("]")
    page.wait_for_url("**cursor=*")
    page.click("#task-rows tr:nth-child(2) th a")
    page.wait_for_url("**/tasks/*")
    page.go_back()
    page.wait_for_url("**cursor=*")
    page.go_back()
    page.wait_for_url("**/tasks?q=type%3Atype1")
    assert page.input_value("#q") == "type:type1"
    assert page.locator("#task-rows tr").first.get_attribute("id") == first
    page.go_back()
    assert page.input_value("#q") == ""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(open_page: Callable[..., Any], demo: WebServer, theme: str) -> None:
    page = open_page("/tasks", port=demo.port, color_scheme=theme)
    only = ["color-contrast"] if theme == "dark" else []  # the rest does not depend on colours
    found = {path: violations(page, only) for path in (*PATHS, *_tasks(page)) if page.goto(url_of(demo, path))}
    assert {path: faults for path, faults in found.items() if faults} == {}
    open_page.said.clear()  # type: ignore[attr-defined]  # of the page that is not there


@pytest.mark.parametrize("width", [390, 1024])
def test_nothing_is_wider_than_its_window_and_no_table_is_cut(
    open_page: Callable[..., Any], demo: WebServer, width: int
) -> None:
    """Not even with the longest names that there may be."""
    page = open_page("/tasks", port=demo.port)
    page.set_viewport_size({"width": width, "height": 844})
    longest, queue = "t" * 60 + "." + "y" * 67, "q" * 64
    form = {"task_type": longest, "queue": queue, "payload": {"word": "w" * 500}, "tags": ["g" * 64] * 1}
    made = page.request.post(url_of(demo, "/api/v1/tasks"), data=form).json()
    wide = {}
    for path in (*PATHS, *_tasks(page), f"/queues/{queue}", f"/queues/{queue}/purge", f"/tasks/{made['task_id']}"):
        page.goto(url_of(demo, path))
        page.evaluate("for (const it of document.querySelectorAll('main details')) it.open = true")
        found = page.evaluate(_TOO_WIDE)
        if found:
            wide[path] = found
    open_page.said.clear()  # type: ignore[attr-defined]  # of the page that is not there
    assert wide == {}


_TOO_WIDE = """() => [
    ...(document.scrollingElement.scrollWidth > innerWidth ? ["the page"] : []),
    ...[...document.querySelectorAll(".scroll:not([tabindex]), .card, .ask, .page-head")]
        .filter((box) => box.clientWidth && box.scrollWidth > box.clientWidth + 1)
        .map((box) => `${box.className} ${box.scrollWidth} > ${box.clientWidth}`)]"""


def _tasks(page: Any) -> list[str]:
    """The pages of a task in each status that the first page of the list has."""
    rows = page.evaluate(
        "Object.values(Object.fromEntries([...document.querySelectorAll('#task-rows tr')]"
        ".map((row) => [row.querySelector('.badge').className, row.dataset.href])))"
    )
    return [str(row) for row in rows]
