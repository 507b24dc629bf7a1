"""The dashboard in a real browser, over a real web server and a real worker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dtq.apikeys import create_key
from dtq.client import Client
from dtq.settings import load_settings
from tests.browser.demo import Demo
from tests.browser.driver import chromium, launched, violations
from tests.support.servers import ServerProcess, find_program
from tests.support.web_server import WebServer, running_web
from tests.support.workers import WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser"), pytest.mark.timeout(240)]

LIVE = "#live[data-state=live]"
PATIENCE_MS = 15_000
PATHS = (
    *(
        "/",
        "/queues",
        "/queues/webhooks",
        "/tasks",
        "/tasks?q=colour:x+status:running",
        "/tasks/new?task_type=email.welcome",
    ),
    *(
        "/failures",
        "/dead",
        "/dead/bulk?action=requeue&all=1",
        "/tasks/cancel-all?q=error:e",
        "/workers",
        "/messages",
        "/messages/commands",
    ),
    *("/messages/commands/retry", "/bulk", "/events", "/audit", "/settings", "/nope", "/sign-in"),
)


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


def submit(page: Any, task_type: str, payload: str = "{}", **fields: str) -> str:
    """Fill in the form and send it; return the id of the task."""
    page.goto(re.sub(r"(//[^/]+).*", r"\1/tasks/new", page.url))
    page.fill("input[name=task_type]", task_type)
    page.fill("textarea[name=payload]", payload)
    for name, value in fields.items():
        if name != "queue":
            page.click("#submit summary")
        page.fill(f"input[name={name}]", value)
    page.click("#submit button.primary")
    page.wait_for_url(re.compile(r"/tasks/[0-9a-f]{32}$"))
    return str(page.url.rpartition("/")[2])


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
            page.goto(_url(server, "/queues"))
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


# --- safe, and for everybody ------------------------------------------------------------------------------------------

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def test_dash_05_a_hostile_payload_stays_text(
    open_page: Callable[..., Any], web: WebServer, worker: WorkerProcess
) -> None:
    page = open_page("/")
    task_id = submit(page, "permanent_fail_task", json.dumps({"message": HOSTILE}), tags=HOSTILE[:60])
    page.wait_for_selector("#head .badge.s-dead_lettered")
    for path in (f"/tasks/{task_id}", "/", "/tasks", "/dead", "/failures", "/events", "/audit"):
        page.goto(_url(web, path))
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


def test_everything_is_within_reach_of_the_keyboard(open_page: Callable[..., Any], client: Client) -> None:
    ids = [client.submit("echo_task").task_id for _ in range(3)]
    page = open_page("/")
    for keys, path in (("gq", "/queues"), ("gt", "/tasks")):
        page.keyboard.type(keys)
        page.wait_for_url(f"**{path}")
        page.wait_for_selector(LIVE)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.locator("tr.at").get_attribute("id") == f"t-{ids[1]}"
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/tasks/{ids[2]}")
    page.keyboard.press("?")
    assert page.locator("#keys[open]").count() == 1
    page.keyboard.press("Escape")
    page.go_back()
    page.wait_for_url("**/tasks")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", "focus can be seen"


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


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(open_page: Callable[..., Any], demo: WebServer, theme: str) -> None:
    page = open_page("/tasks", port=demo.port, color_scheme=theme)
    only = ["color-contrast"] if theme == "dark" else []  # the rest does not depend on colours
    found = {path: violations(page, only) for path in (*PATHS, *_tasks(page)) if page.goto(_url(demo, path))}
    assert {path: faults for path, faults in found.items() if faults} == {}
    open_page.said.clear()  # type: ignore[attr-defined]  # of the page that is not there


@pytest.mark.slow
def test_nothing_is_wider_than_a_telephone(open_page: Callable[..., Any], demo: WebServer) -> None:
    page = open_page("/tasks", port=demo.port)
    page.set_viewport_size({"width": 390, "height": 844})
    wide = {}
    for path in (*PATHS, *_tasks(page)):
        page.goto(_url(demo, path))
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 390:
            wide[path] = width
    assert wide == {}
    open_page.said.clear()  # type: ignore[attr-defined]


def _tasks(page: Any) -> list[str]:
    """The pages of a task in each status that the first page of the list has."""
    rows = page.evaluate(
        "Object.values(Object.fromEntries([...document.querySelectorAll('#task-rows tr')]"
        ".map((row) => [row.querySelector('.badge').className, row.dataset.href])))"
    )
    return [str(row) for row in rows]


def _url(server: WebServer, path: str) -> str:
    return f"http://127.0.0.1:{server.port}{path}"
