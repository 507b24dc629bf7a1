"""`make screenshots`: the pictures of docs/images, of a seeded server, by the Chromium that the machine has."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dtq.client import Client
from dtq.settings import load_settings
from dtq.states import Status
from dtq.taskfilter import TaskFilter
from tests.browser.demo import Demo
from tests.browser.driver import chromium, launched
from tests.support import PROJECT
from tests.support.servers import ServerProcess, find_program
from tests.support.web_server import WebServer, running_web

IMAGES = PROJECT / "docs" / "images"
WIDE, NARROW = (1440, 900), (390, 844)


@contextmanager
def _seeded() -> Iterator[tuple[WebServer, Demo, Client]]:
    program = find_program("valkey")
    assert program is not None, "no server program; see docs/contributing.md"
    process = ServerProcess(program).start()
    try:
        settings = load_settings(env_file=None, redis_url=process.url, visibility_timeout_s=7200)
        with Client(settings=settings) as client, running_web(process.url, web_threads=16, max_websockets=12) as web:
            demo = Demo(client)
            demo.seed()
            yield web, demo, client
    finally:
        process.remove()


def _story(client: Client) -> str:
    """Return the task with the longest story."""
    dead = client.tasks(TaskFilter(status=Status.DEAD_LETTERED, queue="email"), 50).tasks
    dead = dead or client.tasks(TaskFilter(status=Status.DEAD_LETTERED), 50).tasks
    return max(dead, key=lambda task: task.attempt).task_id


def _take(browser: Any, url: str, name: str, size: tuple[int, int], theme: str) -> None:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
    page = context.new_page()
    page.goto(url)
    page.wait_for_timeout(1000)
    page.screenshot(path=IMAGES / f"{name}.png")
    context.close()
    print(f"docs/images/{name}.png")


def main() -> int:
    """Take them all."""
    path = chromium()
    if path is None:
        print("this machine has no Chromium (Debian: apt-get install chromium)", file=sys.stderr)
        return 1
    IMAGES.mkdir(exist_ok=True)
    with _seeded() as (web, demo, client), launched(path) as browser:
        story = f"/tasks/{_story(client)}"
        for name, address, size, theme in (
            ("overview", "/", WIDE, "light"),
            ("overview-dark", "/", WIDE, "dark"),
            ("task", story, WIDE, "light"),
            ("tasks-dark", "/tasks", WIDE, "dark"),
            ("queue", "/queues/webhooks", WIDE, "light"),
            ("failures", "/failures", WIDE, "light"),
            ("overview-narrow", "/", NARROW, "light"),
            ("tasks-narrow-dark", "/tasks", NARROW, "dark"),
        ):
            demo.workers()
            _take(browser, f"http://127.0.0.1:{web.port}{address}", name, size, theme)
    return 0


if __name__ == "__main__":
    sys.exit(main())
