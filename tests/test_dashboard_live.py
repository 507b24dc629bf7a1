"""How open pages are kept up to date: one drawing for all tabs, only what changed, and of it the newest state."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dtq.redisio import Server
from dtq.web.dashboard.drawing import Drawing
from dtq.web.dashboard.hub import Hub, Tab
from dtq.web.dashboard.live import hub_of
from dtq.web.dashboard.viewer import Viewer
from tests.conftest import ServerFactory
from tests.support.dashboard import running_dashboard
from tests.support.web import Api

VIEWER = Viewer()


class Browser:
    """A tab, and what came to it."""

    def __init__(self, api: Api, path: str, rows: str = "", viewer: Viewer = VIEWER) -> None:
        self.hub: Hub = hub_of(api.app)
        self.frames: list[dict[str, Any]] = []
        self.tab = Tab(self._read)
        screen = self.hub._drawing.screen(path, rows.split(), viewer)
        assert screen is not None
        self.tab.show(screen)
        self.hub.open(self.tab)
        self.hub.ring()

    def _read(self) -> None:
        frame = self.tab.take()
        if frame is not None:
            self.frames.append(json.loads(frame))

    @property
    def content(self) -> str:
        return "".join(frame.get("content", "") for frame in self.frames)

    def forget(self) -> None:
        self.frames.clear()

    def close(self) -> None:
        self.hub.close(self.tab)


@pytest.fixture
def api(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr("dtq.web.dashboard.hub.LINGER_S", 0.2)
    with running_dashboard(server.safe_url) as made:
        yield made
        made.app.extensions["dtq"].stopping.set()


@pytest.fixture
def opened(api: Api) -> Iterator[Callable[..., Browser]]:
    made: list[Browser] = []

    def make(path: str, rows: str = "", **options: Any) -> Browser:
        made.append(Browser(api, path, rows, **options))
        return made[-1]

    yield make
    for browser in made:
        browser.close()


def settle(browser: Browser, wait_until: Callable[..., Any]) -> None:
    wait_until(lambda: browser.content, what="the first drawing")
    time.sleep(0.1)
    browser.forget()


def test_a_tab_gets_all_of_its_page_and_then_what_changed_alone(
    api: Api, opened: Callable[..., Browser], wait_until: Callable[..., Any]
) -> None:
    browser = opened("/")
    wait_until(lambda: browser.content, what="the first drawing")
    for part in ("verdict", "tiles", "queues", "workers"):
        assert f'hx-target="#{part}"' in browser.content
    settle(browser, wait_until)
    began = time.monotonic()
    api.post(queue="mail")
    wait_until(lambda: "mail" in browser.content, what="the new queue", timeout_s=10)
    assert time.monotonic() - began < 10, "a second, on a machine with nothing else to do"
    assert 'hx-target="#workers"' not in browser.content, "nothing happened there"
    assert all(frame["at"] > 0 for frame in browser.frames)


def test_ten_tabs_cost_one_reader_and_one_drawing(
    api: Api, opened: Callable[..., Browser], wait_until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    draw = Drawing.draw

    def counted(self: Drawing, screen: Any, *rest: Any) -> Any:
        drawn.append(screen.path)
        return draw(self, screen, *rest)

    browsers = [opened("/") for _ in range(10)]
    for browser in browsers:
        settle(browser, wait_until)
    monkeypatch.setattr(Drawing, "draw", counted)
    sent, call = [], api.client.server.call
    monkeypatch.setattr(api.client.server, "call", lambda *args: sent.append(args[0]) or call(*args))
    api.post(queue="mail")
    for browser in browsers:
        wait_until(lambda it=browser: "mail" in it.content, what="the new queue in every tab")
    rounds = len(drawn)
    assert rounds <= 4
    assert len(sent) <= 12 * rounds + 4, "what one tab would have asked for, and the submission"
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("dashboard") == 1
    assert len([name for name in names if "event" in name.lower()]) == 1


def test_a_page_hears_of_what_it_shows_and_of_nothing_else(
    api: Api, opened: Callable[..., Browser], wait_until: Callable[..., Any]
) -> None:
    task = api.post()
    mine, other, queue = opened(f"/tasks/{task['task_id']}"), opened(f"/tasks/{'0' * 32}"), opened("/queues/elsewhere")
    wait_until(lambda: mine.content and queue.content and other.frames, what="the first drawings")
    time.sleep(0.1)
    for browser in (mine, other, queue):
        browser.forget()
    api.claim()
    wait_until(lambda: "has been running for" in mine.content, what="the story")
    assert "elsewhere" not in queue.content
    assert other.content == "", "a task that is not there"


def test_a_row_changes_in_its_place_and_new_tasks_wait_to_be_shown(
    api: Api, opened: Callable[..., Browser], wait_until: Callable[..., Any]
) -> None:
    first, second = api.post(), api.post()
    browser = opened("/tasks", f"{second['task_id']} {first['task_id']}")
    settle(browser, wait_until)
    claim = api.claim()
    wait_until(lambda: "s-running" in browser.content, what="the row")
    assert f'hx-target="#t-{claim.task_id}"' in browser.content
    assert f'hx-target="#t-{second["task_id"]}"' not in browser.content
    api.post()
    wait_until(lambda: "1 new, show" in browser.content, what="the word of the new one")


def test_a_tab_that_is_slow_gets_the_newest_state_and_no_queue_of_old_ones(api: Api) -> None:
    screen = hub_of(api.app)._drawing.screen("/", [], VIEWER)
    assert screen is not None
    tab = Tab(lambda: None)
    tab.show(screen)
    for number in range(1000):
        tab.offer(screen, {"tiles": f"<b>{number}</b>", "queues": "same"}, {"at": number})
    frame = json.loads(tab.take() or b"{}")
    assert frame == {"at": 999, "content": "<b>999</b>same"}
    assert tab.take() is None
    tab.offer(screen, {"tiles": "<b>999</b>", "queues": "same"}, {"at": 1000})
    assert json.loads(tab.take() or b"{}") == {"at": 1000}
    tab.show(screen)  # it asks for all of it again
    tab.offer(screen, {"tiles": "<b>999</b>"}, {"at": 1001})
    assert json.loads(tab.take() or b"{}")["content"] == "<b>999</b>"


def test_what_happens_in_masses_is_drawn_twice_a_second_at_most(
    api: Api, opened: Callable[..., Browser], wait_until: Callable[..., Any]
) -> None:
    browser = opened("/")
    settle(browser, wait_until)
    rounds, began = browser.hub.rounds, time.monotonic()
    while time.monotonic() - began < 2.0:
        api.client.submit_many([{"task_type": "echo"}] * 50)
    assert browser.hub.rounds - rounds <= 2 * (time.monotonic() - began) + 2
    number = sum(api.client.queries.counts("default").values())
    wait_until(lambda: f"{number:,}" in browser.content, what="the last of them", timeout_s=30)


@pytest.mark.slow
def test_while_redis_is_away_tabs_are_told_and_then_they_catch_up(
    server_factory: ServerFactory, wait_until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtq.web.dashboard.hub.LINGER_S", 0.2)
    process = server_factory(aof=True)
    with running_dashboard(process.url) as api:
        browser = Browser(api, "/")
        settle(browser, wait_until)
        process.stop()
        wait_until(lambda: any("away" in frame for frame in browser.frames), what="the bad news", timeout_s=15)
        process.start()
        wait_until(lambda: browser.frames and "at" in browser.frames[-1], what="the good news", timeout_s=15)
        browser.forget()
        api.post(queue="mail")
        wait_until(lambda: "mail" in browser.content, what="the new queue", timeout_s=15)
        browser.close()
        api.app.extensions["dtq"].stopping.set()


def test_a_tab_without_a_socket_asks_and_gets_the_same(api: Api) -> None:
    task = api.post()
    headers = {"Sec-Fetch-Site": "same-origin"}
    asked = {"path": "/tasks?q=status:queued", "rows": task["task_id"]}
    answer = api.http.post("/live", json=asked, headers=headers).json
    assert f'hx-target="#t-{task["task_id"]}"' in answer["content"]
    assert answer["at"] == pytest.approx(time.time(), abs=5)
    for nonsense in ({}, {"path": 1}, {"path": "/nope"}, {"path": "/settings"}, {"path": "/tasks/new"}, []):
        assert api.http.post("/live", json=nonsense, headers=headers).json == {}
    assert api.http.post("/live", json=asked, headers={"Origin": "https://evil.example"}).status_code == 403
    gone = {"path": f"/tasks/{'0' * 32}"}
    assert api.http.post("/live", json=gone, headers=headers).json["content"] == ""
