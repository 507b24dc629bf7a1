"""The pages of the dashboard: complete without a script, safe whatever they hold, honest when something is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dtq.model import Actor, ErrorInfo, Outcome
from dtq.redisio import Server
from dtq.states import Disposition, Status
from dtq.web.dashboard.page import CONTENT_SECURITY_POLICY
from tests.browser.demo import Demo
from tests.conftest import ServerFactory
from tests.support.dashboard import PATHS, Document, fragments, page, post, running_dashboard, said
from tests.support.servers import ServerProcess, find_program
from tests.support.web import Api, running_api


@pytest.fixture(scope="module")
def demo() -> Iterator[Api]:
    """A lively server. Tests that use it change nothing."""
    program = find_program("valkey")
    assert program is not None
    process = ServerProcess(program).start()
    with running_dashboard(process.url, visibility_timeout_s=7200) as api:
        Demo(api.client).seed()
        yield api
    process.remove()


@pytest.fixture
def api(dashboard: Api, server: Server) -> Api:
    """An application over an empty server, which forgets what it knew."""
    dashboard.client._published._fresh_until = 0.0
    return replace(dashboard, http=dashboard.app.test_client())


@pytest.fixture(scope="module")
def ids(demo: Api) -> dict[str, str]:
    """A task in each status that the demo has."""
    tasks = demo.client.tasks(limit=200).tasks
    return {task.status.value: task.task_id for task in tasks}


# --- every page -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_every_page_is_sound_and_light_and_forbids_what_it_does_not_need(demo: Api, path: str) -> None:
    html = page(demo, path)
    assert html.count("<h1") == 1
    assert len(html) < 70_000, "with the scripts and the style sheet, packed, that is below 100 KB"
    headers = demo.http.get(path).headers
    assert headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("path", PATHS)
def test_every_page_is_sound_where_there_is_nothing_yet(api: Api, path: str) -> None:
    page(api, path)


def test_the_page_of_a_task_is_sound_in_every_status(demo: Api, ids: dict[str, str]) -> None:
    assert len(ids) >= 6
    for status, task_id in ids.items():
        html = page(demo, f"/tasks/{task_id}")
        assert f'class="badge s-{status}"' in html
        assert task_id in html


def test_scripts_and_styles_are_to_be_had_packed_and_for_ever(demo: Api) -> None:
    document = Document(page(demo, "/"))
    paths = [str(attrs["src"]) for attrs in document.named("script")]
    paths += [str(attrs["href"]) for attrs in document.named("link")]
    total = 0
    for path in paths:
        response = demo.http.get(path, headers={"Accept-Encoding": "gzip"})
        assert response.status_code == 200, path
        assert response.headers["Content-Encoding"] == "gzip"
        assert "immutable" in response.headers["Cache-Control"]
        assert demo.http.get(path, headers={"If-None-Match": response.headers["ETag"],
                                            "Accept-Encoding": "gzip"}).status_code == 304  # fmt: skip
        total += len(response.data)
    assert total < 30_000
    assert demo.http.get("/static/../app.py").status_code == 404
    assert demo.http.get("/static/vendor/htmx.org@4.0.1/LICENSE").status_code == 404


def test_what_is_vendored_is_what_its_checksums_say() -> None:
    import hashlib

    from dtq.web.dashboard.assets import DIRECTORY

    for sums in DIRECTORY.glob("vendor/*/SHA256SUMS"):
        assert (sums.parent / "LICENSE").is_file()
        for line in sums.read_text().splitlines():
            digest, name = line.split()
            assert hashlib.sha256((sums.parent / name).read_bytes()).hexdigest() == digest


def test_a_swap_gets_the_frame_alone(demo: Api) -> None:
    response = demo.http.get("/tasks", headers={"HX-Request": "true", "HX-Request-Type": "partial"})
    assert "<html" not in response.text
    assert "<title>Tasks" in response.text
    assert 'id="task-rows"' in response.text


def test_what_is_pushed_is_what_the_page_holds(demo: Api) -> None:
    """The same partials: else a page would change its looks when it comes alive."""
    for path in ("/", "/queues", "/queues/email", "/workers"):
        html = re.sub(r"\s+", " ", page(demo, path))
        for name, fragment in fragments(demo, path).items():
            inner = re.sub(r"^<hx-partial[^>]*>|</hx-partial>$", "", fragment)
            labels = re.findall(r'scope="col"[^>]*>[^<]+', inner)
            assert f'id="{name}"' in html
            assert all(label in html for label in labels), (path, name)


def test_pages_that_are_not_there_say_so_to_people_and_to_programs(demo: Api) -> None:
    assert "There is no such page" in page(demo, "/nope", 404)
    assert "There is no such page" in page(demo, "/x'onmouseover='alert(1)", 404)
    assert demo.http.get("/nope").mimetype == "application/problem+json"
    assert demo.http.get("/api/v1/nope", headers={"Accept": "text/html"}).mimetype == "application/problem+json"
    assert "there is no task" in page(demo, f"/tasks/{'0' * 32}", 404).lower()
    assert "no such queue" in page(demo, "/queues/NO", 404)


def test_each_role_of_the_web_serves_its_part(server: Server) -> None:
    with running_api(server.safe_url, serve="api") as api:
        assert api.http.get("/").mimetype == "text/plain"
        assert api.http.get("/tasks").status_code == 404
        assert api.http.get("/api/v1/tasks").status_code == 200
    with running_api(server.safe_url, serve="dashboard") as api:
        page(api, "/")
        assert api.http.get("/api/v1/tasks").status_code == 404
        for path in ("/health", "/ready", "/metrics"):
            assert api.http.get(path).status_code == 200


def test_while_redis_is_away_a_page_says_so_and_asks_again(server_factory: ServerFactory) -> None:
    process = server_factory()
    with running_dashboard(process.url) as api:
        page(api, "/")
        process.stop()
        html = page(api, "/tasks", 503)
        assert "Redis is away" in html
        assert 'http-equiv="refresh"' in html
        assert post(api, "/queues/email/pause").status_code == 503


# --- looking ----------------------------------------------------------------------------------------------------------


def test_the_verdict_says_what_needs_attention_and_where_to_go(demo: Api, api: Api) -> None:
    html = page(demo, "/")
    assert re.search(r"\d things need attention", html)
    for said_there in ("priority 0 is starved", "paused by key:anna", "% of the attempts fail", "failed for good"):
        assert said_there in html
    assert 'href="/queues/imports"' in html
    api.register_worker()
    assert "Nothing has been submitted yet" in page(api, "/")
    api.post()
    api.succeed(api.claim())
    assert "The one queue is moving" in page(api, "/")


def test_no_worker_is_said_first_and_with_what_to_do(api: Api) -> None:
    api.post()
    html = page(api, "/")
    assert "No worker is running." in html
    assert "1 task waits; start one with" in html
    api.register_worker()
    api.post(queue="mail")
    assert "no worker serves it, 1 task waits" in page(api, "/")


def test_prio_01_a_band_that_waits_while_higher_ones_are_served_is_marked_as_starved(api: Api) -> None:
    api.register_worker()
    low = api.post(priority=0)
    key = api.client.broker.keys.task(low["task_id"])
    created = int(api.client.server.call("HGET", key, "created"))
    api.client.server.call("HSET", key, "created", created - 60_000_000)
    api.post(priority=9)
    html = page(api, "/queues/default")
    assert html.count("starved</span>") == 1
    assert re.search(r'<th scope="row">0 <span class="badge', html)
    assert "priority 0 is starved" in page(api, "/")
    api.claim()  # the urgent one
    assert "starved" not in page(api, "/queues/default"), "it is the next one now"


def test_the_list_is_found_by_the_query_that_stands_in_the_url(demo: Api) -> None:
    html = page(demo, "/tasks?q=status:dead_lettered+queue:webhooks+error:refused")
    rows = re.findall(r'<tr id="t-(\w+)"', html)
    assert rows
    for task in demo.client.queries.some_tasks(rows):
        assert task is not None
        assert task.status is Status.DEAD_LETTERED
        assert "refused" in str(task.error)
    assert 'value="status:dead_lettered queue:webhooks error:refused"' in html
    assert "Searched" in html, "how far it has looked"
    assert 'aria-label="Without error:refused"' in html


def test_a_query_that_is_not_understood_is_told_under_the_box(demo: Api) -> None:
    html = page(demo, "/tasks?q=colour:<img src=x onerror=alert(1)>")
    assert 'aria-invalid="true"' in html
    assert "there is no such key" in html


def test_the_list_goes_on_to_its_end_and_a_cursor_of_nobody_is_the_beginning(demo: Api) -> None:
    seen: list[str] = []
    path: str | None = "/tasks"
    while path is not None:
        html = page(demo, path)
        seen += re.findall(r'<tr id="t-(\w+)"', html)
        found = re.search(r'rel="next" href="([^"]+)"', html)
        path = found[1].replace("&amp;", "&") if found else None
    there = sum(sum(queue.counts.values()) for queue in demo.client.queries.queues())
    assert len(seen) == len(set(seen)) == there
    assert re.findall(r'<tr id="t-(\w+)"', page(demo, "/tasks?cursor=nonsense")) == seen[:50]


def test_an_id_in_the_search_leads_to_its_task(demo: Api, ids: dict[str, str]) -> None:
    response = demo.http.get(f"/tasks?q={ids['queued']}")
    assert (response.status_code, response.headers["Location"]) == (303, f"/tasks/{ids['queued']}")


def test_times_are_shown_as_the_viewer_likes_them(demo: Api, ids: dict[str, str]) -> None:
    browser = demo.app.test_client()
    headers = {"Sec-Fetch-Site": "same-origin"}
    path = f"/tasks/{ids['succeeded']}"
    assert re.search(r'<time datetime="[^"]+" title="[\d: -]+UTC" data-at="[\d.]+">\d+\s\w ago', browser.get(path).text)
    fields = {"time": "absolute", "zone": "Asia/Tokyo", "theme": "dark", "back": path}
    response = browser.post("/preferences", data=fields, headers=headers)
    assert (response.status_code, response.headers["Location"]) == (303, path)
    html = browser.get(path).text
    assert re.search(r'<time datetime="[^"]+" title="\d+\s\w ago">[\d: -]+JST', html)
    assert 'data-theme="dark"' in html
    browser.post("/preferences", data={"zone": "No/Where", "back": path}, headers=headers)
    assert "There is no time zone No/Where" in browser.get(path).text
    for elsewhere in ("https://evil.example/", "//evil.example", "/\\evil.example"):
        response = browser.post("/preferences", data={"back": elsewhere}, headers=headers)
        assert response.headers["Location"] == "/"


# --- one task ---------------------------------------------------------------------------------------------------------


def test_a_task_tells_its_story(demo: Api) -> None:
    dead = next(task for task in demo.client.tasks(limit=200).tasks if task.status is Status.DEAD_LETTERED
                and task.attempt == 5)  # fmt: skip
    html = page(demo, f"/tasks/{dead.task_id}")
    assert f"It failed for good after 5 attempts with {dead.error['class']}." in html  # type: ignore[index]
    assert html.count('<tr class="error-row">') == 5
    assert "Traceback (most recent call last)" in html
    assert html.count('class="lane-bar"') == 5
    assert "curl -X POST http://localhost/api/v1/tasks" in html


def test_a_large_payload_is_not_loaded_unless_asked_for(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    task = api.post(payload={"rows": ["x" * 70] * 1500})
    path, sent = f"/tasks/{task['task_id']}", []
    pipeline = api.client.server.pipeline

    def measured(commands: Any) -> Any:
        replies = pipeline(commands)
        sent.append(sum(len(reply) for reply in replies if isinstance(reply, bytes)))
        return replies

    monkeypatch.setattr(api.client.server, "pipeline", measured)
    html = page(api, path)
    assert "which is not loaded unless you ask" in html
    assert max(sent) <= 64 * 1024
    assert len(html) < 30_000
    html = page(api, f"{path}?load=payload")
    assert "1,500 items" in html


def test_a_payload_of_many_values_is_drawn_so_far(api: Api) -> None:
    task = api.post(payload={"n": list(range(9000))})
    html = page(api, f"/tasks/{task['task_id']}")
    assert "9,000 items" in html
    assert re.search(r"… 8,\d\d\d more", html)
    assert len(html) < 40_000


def test_what_must_not_be_seen_is_hidden_everywhere_on_the_page(api: Api) -> None:
    secret = "hunter2-Zq"
    task = api.post(payload={"user": "u1", "Password": secret, "deep": [{"api-key": {"v": secret}}]},
                    metadata={"auth_token": secret})  # fmt: skip
    claim = api.claim()
    api.succeed(claim, json.dumps({"secret": secret, "ok": True}).encode())
    path = f"/tasks/{task['task_id']}"
    for html in (page(api, path), page(api, f"{path}?load=payload"), page(api, f"/tasks/new?like={task['task_id']}")):
        assert secret not in html
        assert "u1" in html
    assert all(secret not in fragment for fragment in fragments(api, path).values())
    assert "Reveal 2 hidden values" in page(api, path)


def test_what_is_hidden_is_filled_in_again_when_a_copy_is_submitted(api: Api) -> None:
    task = api.post(payload={"password": "p1", "n": 1, "list": [{"token": "t1"}]})
    html = page(api, f"/tasks/new?like={task['task_id']}")
    assert "is hidden, and is filled in again" in html
    shown = {"password": "••••••", "n": 2, "list": [{"token": "••••••"}]}
    response = post(api, "/tasks/new", task_type="echo", payload=json.dumps(shown), like=task["task_id"], priority="5")
    made = api.get(response.headers["Location"].rpartition("/")[2])
    assert made["payload"] == {"password": "p1", "n": 2, "list": [{"token": "t1"}]}


def test_a_record_that_cannot_be_read_is_shown_as_it_is(api: Api) -> None:
    task = api.post()
    api.client.server.call("HSET", api.client.broker.keys.task(task["task_id"]), "priority", "high", "odd", "<b>")
    html = page(api, f"/tasks/{task['task_id']}")
    assert "cannot be read" in html
    assert "odd            &lt;b&gt;" in html


# --- safe -------------------------------------------------------------------------------------------------------------

FOREIGN_ORIGIN = {"Origin": "https://evil.example"}
HOSTILE = """<img src=x onerror=alert(1)>'"</textarea></script>{{7*7}}"""


def test_dash_05_nothing_that_comes_from_outside_becomes_markup(api: Api) -> None:
    """Wherever a name, a payload, an error or a reason can come from, it is text on every page and in every push."""
    options: dict[str, Any] = {"payload": {HOSTILE: [HOSTILE]}, "metadata": {HOSTILE: HOSTILE}, "tags": [HOSTILE[:64]],
                               "idempotency_key": HOSTILE}  # fmt: skip
    api.register_worker()
    dead, done, failing = (api.post(**{**options, "idempotency_key": f"{HOSTILE}{n}"}) for n in range(3))
    error = ErrorInfo(HOSTILE, HOSTILE, HOSTILE)
    claims = api.client.broker.claim(api.worker_id, ["default"], 10).claims
    api.client.broker.commit(
        api.worker_id,
        [
            Outcome(claim=claims[0], kind="dead", reason="permanent", error=error, disposition=Disposition.FAILED),
            Outcome(claim=claims[1], kind="succeed", result=json.dumps({HOSTILE: HOSTILE}).encode()),
            Outcome(claim=claims[2], kind="retry", delay_ms=60_000, error=error, disposition=Disposition.FAILED),
        ],
    )
    running = api.post(**{**options, "idempotency_key": "r"})
    claim = api.claim()
    api.client.broker.progress(api.worker_id, claim, 0.5, HOSTILE)
    api.client.cancel(failing["task_id"], actor=Actor(HOSTILE, HOSTILE, HOSTILE))
    api.client.pause("default", actor=Actor(HOSTILE, HOSTILE, HOSTILE))
    rows = " ".join(task["task_id"] for task in (dead, done, failing, running))
    paths = [
        "/",
        "/queues",
        "/queues/default",
        "/tasks",
        "/workers",
        "/events",
        "/audit",
        "/settings",
        "/tasks/new",
        "/dead",
        "/failures",
        "/messages",
        "/bulk",
        "/dead/bulk?action=requeue&all=1",
        "/queues/default/purge",
    ]
    paths += [f"/tasks/{task_id}" for task_id in rows.split()] + [f"/tasks/new?like={dead['task_id']}"]
    paths += [
        f"/{area}?q={HOSTILE}&type={HOSTILE}&queue={HOSTILE}&actor={HOSTILE}" for area in ("tasks", "events", "audit")
    ]
    for path in paths:
        html = page(api, path)
        assert "<img" not in html, path
        assert "49" not in re.findall(r"\{\{(\d+)", html)
        if "?" not in path and path not in ("/settings", "/tasks/new", "/audit", "/queues/default/purge"):
            for name, fragment in fragments(api, path, rows).items():
                assert "<img" not in fragment, (path, name)
    for status, path in ((404, f"/{HOSTILE}"), (404, f"/queues/{HOSTILE}"), (404, f"/tasks/{HOSTILE}")):
        assert "<img" not in page(api, path, status)
    assert HOSTILE.replace("<", "&lt;")[:8] in page(api, f"/tasks/{dead['task_id']}")
    response = post(api, "/tasks/new", task_type=HOSTILE, payload=HOSTILE, queue=HOSTILE, priority=HOSTILE)
    assert response.status_code == 400
    assert Document(response.text).faults == []
    assert "<img" not in response.text


# --- doing ------------------------------------------------------------------------------------------------------------


def test_a_form_does_its_work_and_leads_back_to_its_page(api: Api) -> None:
    api.post(queue="mail")
    response = post(api, "/queues/mail/pause", back="/queues")
    assert (response.status_code, response.headers["Location"]) == (303, "/queues")
    assert api.client.queries.queue("mail").paused is not None
    assert said(api) == "mail is paused. What runs goes on; nothing new starts."
    assert said(api) == "", "once is enough"
    post(api, "/queues/mail/resume")
    assert api.client.queries.queue("mail").paused is None
    assert "goes on" in said(api)


def test_tasks_are_cancelled_requeued_and_discarded(api: Api) -> None:
    waiting = api.post()
    post(api, f"/tasks/{waiting['task_id']}/cancel")
    assert said(api) == "The task is cancelled."
    dead = [api.post() for _ in range(2)]
    for _ in dead:
        api.bury(api.claim())
    post(api, f"/dead/{dead[0]['task_id']}/requeue")
    assert "echo is queued again" in said(api)
    post(api, f"/dead/{dead[1]['task_id']}/discard")
    assert "given up" in said(api)
    assert [api.get(task["task_id"])["status"] for task in (waiting, *dead)] == ["cancelled", "queued", "failed"]
    running = api.claim()
    post(api, f"/tasks/{running.task_id}/cancel")
    assert "asked to cancel" in said(api)
    post(api, f"/tasks/{waiting['task_id']}/cancel")
    assert "has ended already" in said(api), "what cannot be done is said on the page too"


def test_workers_are_told_from_afar(api: Api) -> None:
    api.register_worker()
    post(api, f"/workers/{api.worker_id}/quiet", back="/workers")
    assert "told to take no more tasks" in said(api, "/workers")
    assert api.client.server.call("HGET", api.client.broker.keys.worker(api.worker_id), "command") == b"quiet"
    assert post(api, f"/workers/{api.worker_id}/stop").headers["Location"] == "/workers"
    post(api, "/workers/nobody/quiet")
    assert "no live worker nobody" in said(api, "/workers")


def test_dash_07_no_other_site_and_no_link_can_do_anything(api: Api) -> None:
    task = api.post()
    api.register_worker()
    forms = ["/queues/default/pause", "/queues/default/resume", f"/tasks/{task['task_id']}/cancel",
             f"/dead/{task['task_id']}/requeue", f"/dead/{task['task_id']}/discard",
             f"/workers/{api.worker_id}/quiet", f"/workers/{api.worker_id}/stop", "/tasks/new", "/preferences",
             "/sign-out", "/dead/bulk", "/tasks/cancel", "/tasks/cancel-all", "/queues/default/purge",
             f"/tasks/{task['task_id']}/reveal",
             f"/bulk/{'0' * 32}/abort", "/messages/m/t/pause", "/messages/m/t/resume", "/messages/m/t/purge",
             "/messages/m/t/requeue"]  # fmt: skip
    asked_first = ("/tasks/new", "/tasks/cancel", "/tasks/cancel-all", "/dead/bulk", "/queues/default/purge",
                   "/messages/m/t/purge")  # fmt: skip
    for path in forms:
        for headers in (FOREIGN_ORIGIN, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {}):
            response = api.http.post(path, data={"task_type": "echo", "priority": "5"}, headers=headers)
            assert response.status_code == 403, (path, headers)
        if path not in asked_first and not path.endswith("/stop"):
            assert api.http.get(path).status_code in (404, 405), path
    assert api.get(task["task_id"])["status"] == "queued"
    assert api.client.queries.queue("default").paused is None


def test_a_role_that_may_only_look_sees_no_buttons_and_is_refused(server: Server, tmp_path: Any) -> None:
    from dtq.apikeys import create_key

    path = tmp_path / "keys"
    keys = {role: create_key(path, role, role) for role in ("read", "submit", "admin")}  # type: ignore[arg-type]
    with running_dashboard(server.safe_url, api_keys_file=str(path), protect="all") as api:
        response = api.http.get("/queues", headers={"Accept": "text/html"})
        assert (response.status_code, response.headers["Location"]) == (303, "/sign-in?to=%2Fqueues")
        assert post(api, "/sign-in", key="wrong").status_code == 403
        task = api.client.submit("echo")
        expected = {
            "read": (403, 403, False, False),
            "submit": (403, 303, False, True),
            "admin": (303, 303, True, True),
        }
        for role, (destroys, writes, destroy_buttons, write_buttons) in expected.items():
            browser = api.app.test_client()
            headers = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
            signed = browser.post("/sign-in", data={"key": keys[role], "to": "/queues"}, headers=headers)
            assert (signed.status_code, signed.headers["Location"]) == (303, "/queues")
            assert keys[role] not in signed.headers["Set-Cookie"]
            html = browser.get("/queues").text
            assert (browser.get("/tasks/cancel-all", headers=headers).status_code == 200) is destroy_buttons
            assert ("/tasks/cancel-all" in browser.get("/tasks").text) is destroy_buttons
            assert ("/queues/default/pause" in html) is destroy_buttons
            assert ("/tasks/new" in html) is write_buttons
            assert role in html, "whose key it is"
            for action in (f"/tasks/{task.task_id}/cancel", "/tasks/cancel-all", "/queues/default/pause"):
                assert browser.post(action, headers=headers).status_code == destroys, (role, action)
            form = {"task_type": "echo", "payload": "{}", "priority": "5"}
            assert browser.post("/tasks/new", data=form, headers=headers).status_code == writes
            assert browser.post("/sign-out", headers=headers).status_code == 303
            assert browser.get("/queues").status_code == 303


# --- submitting -------------------------------------------------------------------------------------------------------


def test_a_task_is_submitted_by_a_form_and_shown(api: Api) -> None:
    given = {"task_type": "echo", "queue": "mail", "priority": "9", "payload": '{"big": 12345678901234567890}',
             "tags": "a, b", "delay_seconds": "60", "idempotency_key": "k", "max_attempts": "3"}  # fmt: skip
    response = post(api, "/tasks/new", timeout_ms="", **given)
    assert response.status_code == 303
    task = api.get(response.headers["Location"].rpartition("/")[2])
    assert (task["queue"], task["priority"], task["status"], task["tags"]) == ("mail", 9, "pending", ["a", "b"])
    assert task["payload"] == {"big": 12345678901234567890}
    assert "no live worker knows the task type echo" in said(api).lower()


def test_what_a_browser_sends_spoilt_spoils_no_page(api: Api) -> None:
    spoilt = {"Cookie": "dtq_said=" + "[" * 7_000, "Accept": "text/html"}
    assert api.app.test_client(use_cookies=False).get("/queues", headers=spoilt).status_code == 200
    post(api, "/messages/m/t/requeue", back="/messages")
    assert said(api, "/messages") == "There is no such dead message any more."


def test_a_form_is_as_large_as_a_payload_may_be_and_no_larger(api: Api) -> None:
    payload = json.dumps({"text": "é" * 120_000}, ensure_ascii=False)  # 720 kB as a form has it
    assert post(api, "/tasks/new", task_type="echo", queue="q", priority="5", payload=payload).status_code == 303
    for length in (2_000_000, 10**12):  # before a byte of it is read, and before anybody signed in
        environ = {"wsgi.input": _Unread(), "CONTENT_LENGTH": str(length)}
        for media in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=b"):
            response = api.http.post("/sign-in", environ_overrides=environ, content_type=media)
            assert response.status_code == 413, (length, media)


class _Unread:
    def read(self, _size: int = -1) -> bytes:
        raise AssertionError("it was read")


def test_what_is_wrong_with_a_submission_stands_at_its_field_and_nothing_is_lost(api: Api) -> None:
    response = post(api, "/tasks/new", task_type="a b", payload='{"a": 1, "a": 2}', priority="x", queue="q")
    assert response.status_code == 400
    assert 'id="fault-priority"' in response.text
    response = post(api, "/tasks/new", task_type="a b", payload='{"a": 1, "a": 2}', priority="5")
    assert 'id="fault-payload"' in response.text
    assert "&#34;a&#34;: 2}" in response.text
    response = post(api, "/tasks/new", task_type="a b", payload="{}", priority="5")
    assert 'id="fault-task_type"' in response.text


def test_the_schema_of_a_handler_is_a_form(demo: Api) -> None:
    html = page(demo, "/tasks/new?task_type=email.welcome")
    for part in ('name="p.to"', 'name="p.template"', 'max="10"', "<option>digest</option>", "who gets it"):
        assert part in html
    assert 'name="payload"' not in html
    response = post(demo, "/tasks/new", task_type="email.welcome", priority="5", **{"p.to": "a@b.c", "p.template": "x"})
    assert response.status_code == 400
    assert 'id="fault-p.template"' in response.text
    assert 'value="a@b.c"' in response.text
