"""What the tests in a browser share: the browser, a web server over an empty Redis, a lively one, a page to begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dtq.client import Client
from dtq.settings import load_settings
from tests.browser.demo import Demo
from tests.browser.driver import LIVE, PATIENCE_MS, chromium, launched
from tests.support.servers import ServerProcess, find_program
from tests.support.web_server import WebServer, running_web
from tests.support.workers import WorkerProcess


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = chromium()
    if path is None:
        pytest.skip("this machine has no Chromium (Debian: apt-get install chromium; or set DTQ_TEST_CHROMIUM)")
    with launched(path) as found:
        yield found


@pytest.fixture(scope="module")
def redis() -> Iterator[ServerProcess]:
    program = find_program("valkey")
    assert program is not None
    process = ServerProcess(program).start()
    yield process
    process.remove()


@pytest.fixture(scope="module")
def web(redis: ServerProcess) -> Iterator[WebServer]:
    with running_web(redis.url, web_threads=32, max_websockets=24) as server:
        yield server


@pytest.fixture(scope="module")
def client(redis: ServerProcess) -> Iterator[Client]:
    with Client(settings=load_settings(env_file=None, redis_url=redis.url)) as made:
        yield made


@pytest.fixture
def worker(redis: ServerProcess, client: Client) -> Iterator[WorkerProcess]:
    made = WorkerProcess(redis.url, "--concurrency", "2", environment={"DTQ_WORKER_METRICS_PORT": "0"})
    made.wait_for_log("slots, Redis", 20)
    yield made
    made.kill()


@pytest.fixture
def open_page(browser: Any, web: WebServer, client: Client) -> Iterator[Callable[..., Any]]:
    """`open_page("/tasks")`: a page in a browser of its own, which must say nothing in its console that is an error."""
    contexts, said = [], []

    def make(path: str, *, port: int | None = None, live: bool = True, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": 1280, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.goto(f"http://127.0.0.1:{port or web.port}{path}")
        if live:
            page.wait_for_selector(LIVE)
        return page

    make.said = said  # type: ignore[attr-defined]
    client.server.call("FLUSHALL")
    yield make
    for context in contexts:
        context.close()
    assert said == []


@pytest.fixture(scope="module")
def demo() -> Iterator[WebServer]:
    """A lively server of its own."""
    program = find_program("valkey")
    assert program is not None
    process = ServerProcess(program).start()
    with (
        Client(settings=load_settings(env_file=None, redis_url=process.url, visibility_timeout_s=7200)) as seeding,
        running_web(process.url, web_threads=16, max_websockets=12) as server,
    ):
        Demo(seeding).seed(60)
        yield server
    process.remove()
