"""What pages tell beyond lists: by what one is narrowed, how long tasks took, why one waits; and who may do what."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from dtq.apikeys import create_key
from dtq.model import Actor, ErrorInfo, HandlerPolicy, Outcome
from dtq.redisio import Server
from dtq.states import Disposition
from dtq.web.dashboard.latency import spread
from dtq.web.dashboard.words import facts
from tests.support.dashboard import fragments, page, post, running_dashboard, said
from tests.support.web import Api


@pytest.fixture
def api(dashboard: Api, server: Server) -> Api:
    """An application over an empty server."""
    return replace(dashboard, http=dashboard.app.test_client())


def facet(html: str, name: str) -> dict[str, int]:
    """What a facet of the list of tasks counts."""
    part = html[html.index(f">{name}</h2>") :]
    found = re.findall(r'title="([^"]+)">[^<]*</a><span class="count">([\d,]+)<', part[: part.index("</section>")])
    return {value: int(number) for value, number in found}


def test_a_list_says_by_what_it_can_be_narrowed_and_leads_there(api: Api) -> None:
    for task_type, queue, number in (("mail.send", "mail", 3), ("mail.open", "mail", 1), ("echo", "default", 2)):
        for _ in range(number):
            api.post(task_type=task_type, queue=queue)
    claim = api.claim()
    outcome = Outcome(
        claim=claim, kind="dead", reason="permanent", error=ErrorInfo("My Error", "x"), disposition=Disposition.FAILED
    )
    api.client.broker.commit(api.worker_id, [outcome])
    html = page(api, "/tasks")
    assert facet(html, "Type") == {"mail.send": 3, "echo": 2, "mail.open": 1}
    assert facet(html, "Queue") == {"mail": 4, "default": 2}
    assert facet(html, "Error") == {"My Error": 1}
    assert "Counted over all 6 that fit." in html
    narrowed = re.search(r'<a href="(/tasks\?q=class[^"]+)"', html)
    assert narrowed is not None
    assert re.findall(r'<tr id="t-(\w+)"', page(api, narrowed[1].replace("&amp;", "&"))) == [claim.task_id]
    html = page(api, "/tasks?q=queue:mail")
    assert facet(html, "Type") == {"mail.send": 3, "mail.open": 1}
    assert 'href="/tasks?q=queue%3Amail+type%3Amail.send"' in html
    assert "facet" not in page(api, "/tasks?q=type:nobody"), "where nothing fits nothing can be narrowed"


def test_rarer_values_and_older_tasks_are_counted_as_left_out(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtq.web.dashboard.facets.SHOWN", 2)
    monkeypatch.setattr("dtq.web.dashboard.facets.MAX_PAGE", 55)
    for number in range(60):
        api.post(task_type=f"type{number % 7}")
    html = page(api, "/tasks")
    assert list(facet(html, "Type").values()) == [8, 8]
    assert "and 5 more" in html
    assert "Counted over the newest 55 that fit." in html


def test_what_was_much_to_look_through_is_not_looked_through_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(120):
        api.post(task_type=f"type{number % 2}", tags=["rare"] * (number < 2))
    reads: list[int] = []
    queries = type(api.client.queries)
    tasks = queries.tasks
    monkeypatch.setattr(queries, "tasks", lambda *given: reads.append(1) or tasks(*given))
    assert "Counted over all 2 that fit." in page(api, "/tasks?q=tag:rare")
    assert len(reads) == 1
    assert "Counted over all 120 that fit." in page(api, "/tasks")
    assert len(reads) == 3
    monkeypatch.setattr("dtq.web.dashboard.facets.MAX_PAGE", 15)
    html = page(api, "/tasks?q=type:type1")
    assert "Counted over the newest 50 that fit." in html
    older = re.search(r'rel="next" href="([^"]+)"', html)
    assert older is not None
    reads.clear()
    assert "Counted over these 10 that fit." in page(api, older[1].replace("&amp;", "&"))
    assert len(reads) == 1, "the page alone"


def test_percentiles_are_values_that_there_were() -> None:
    told = spread("Ran", [float(number) for number in range(100, 0, -1)])
    assert (told.p50, told.p95, told.most) == (50.0, 95.0, 100.0)
    alone = spread("Ran", [3.0])
    assert (alone.p50, alone.p95, alone.most) == (3.0, 3.0, 3.0)


def test_a_queue_says_how_long_its_tasks_waited_and_ran(api: Api) -> None:
    assert "Nothing has succeeded here yet." in page(api, "/queues/default")
    for _ in range(3):
        api.post()
        claim = api.claim()
        time.sleep(0.03)
        api.succeed(claim)
    html = page(api, "/queues/default")
    assert "Of the newest 3 tasks that succeeded." in html
    ran = re.search(r'<th scope="row">Ran</th><td class="n">(\d+)\xa0ms</td>', html)
    assert ran is not None
    assert 25 <= int(ran[1]) < 5_000
    assert "From submitting to the end" in fragments(api, "/queues/default")["took"]


def test_a_task_that_waits_says_what_for(api: Api) -> None:
    task_id = api.post()["task_id"]
    assert "No running worker serves its queue" in page(api, f"/tasks/{task_id}")
    api.register_worker()
    assert "No running worker" not in page(api, f"/tasks/{task_id}")
    api.client.pause("default", actor=Actor("anna"))
    assert "is paused." in page(api, f"/tasks/{task_id}")
    api.client.resume("default", actor=Actor("anna"))
    api.claim()
    assert "No running worker" not in page(api, f"/tasks/{task_id}")


def test_the_audit_leads_to_what_was_done(api: Api) -> None:
    task_id = api.post()["task_id"]
    api.bury(api.claim())
    queue = api.client.queue("commands")
    queue.put("retry", b"x")
    post(api, "/dead/bulk", action="requeue", all="1", reason="mended")
    bulk = re.search(r'href="(/bulk/\w{32})"', page(api, "/bulk"))
    assert bulk is not None
    post(api, "/queues/default/pause")
    post(api, f"/tasks/{task_id}/cancel")
    post(api, "/messages/commands/retry/pause")
    html = page(api, "/audit")
    for address in (bulk[1], "/queues/default", f"/tasks/{task_id}", "/messages/commands/retry"):
        assert f'<a href="{address}">' in html, address
        page(api, address)
    assert "bulk_id" not in html, "what programs read is not what people read"


def test_details_are_told_as_people_say_them() -> None:
    told = {"delay_ms": 1500, "reason": "worker_crashed", "error_class": "OSError", "none": None, "empty": ""}
    assert facts(told).replace("\xa0", " ") == "delay 1.5 s, reason worker crashed, error class OSError"


def test_the_zones_to_choose_from_are_offered(api: Api) -> None:
    html = page(api, "/settings")
    assert '<datalist id="zones">' in html
    assert '<option value="Europe/Paris">' in html
    assert post(api, "/preferences", zone="Europe/Paris").status_code == 303


def test_a_bulk_job_says_what_it_is_about_as_people_say_it(api: Api) -> None:
    for _ in range(2):
        api.post(queue="mail", tags=["a", "b"])
    post(api, "/tasks/cancel-all", q="queue:mail tag:a tag:b age<1h")
    html = re.sub(r"</?code>", "", page(api, "/bulk"))
    assert re.search(r"tasks with queue mail, tags a, b, created after [\d: -]+UTC, created before [\d: -]+UTC", html)


# --- who may do what --------------------------------------------------------------------------------------------------

OPEN = {"/sign-in", "/sign-out", "/preferences"}
"""What everybody may send."""


def writes(api: Api) -> list[str]:
    """The address of everything that a form of the dashboard can do."""
    values = {"task_id": "0" * 32, "bulk_id": "0" * 32, "queue": "q", "topic": "t", "worker_id": "w"}
    rules = [rule for rule in api.app.url_map.iter_rules() if "POST" in (rule.methods or ())]
    paths = [rule.rule for rule in rules if not rule.rule.startswith("/api/")]
    return [re.sub(r"<(?:\w+:)?(\w+)>", lambda found: values[found[1]], path) for path in paths]


def test_dash_07_each_write_asks_who_it_is_and_refuses_whose_role_is_too_small(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    keys = {role: create_key(path, role, role) for role in ("read", "submit", "admin")}  # type: ignore[arg-type]
    with running_dashboard(server.safe_url, api_keys_file=str(path), protect="all") as api:
        own = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
        asked = [one for one in writes(api) if one not in OPEN]
        assert len(asked) >= 18
        for one in asked:
            answer = api.app.test_client().post(one, headers=own)
            refused = answer.status_code == 401 or "/sign-in" in answer.headers.get("Location", "")
            assert refused, (one, answer.status_code)
        expected = {"read": {"/live"}, "submit": {"/live", "/tasks/new"}, "admin": set(asked)}
        for role, allowed in expected.items():
            browser = api.app.test_client()
            browser.post("/sign-in", data={"key": keys[role]}, headers=own)
            passed = {one for one in asked if browser.post(one, headers=own).status_code != 403}
            assert passed == allowed, role


def test_dash_07_no_write_is_taken_from_another_site(api: Api) -> None:
    for one in writes(api):
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
            assert api.http.post(one, headers=headers).status_code == 403, (one, headers)


HOSTILE = """<img src=x onerror=alert(1)>'"</textarea></script>{{7*7}}"""


def test_dash_05_what_a_worker_says_of_itself_is_text(api: Api) -> None:
    rule = {"type": "string", "description": HOSTILE, "default": HOSTILE}
    schema = {"properties": {HOSTILE: rule, "of": {"enum": [HOSTILE]}}, "required": [HOSTILE]}
    handlers = {HOSTILE: HandlerPolicy(max_attempts=None, timeout_ms=None, schema=schema)}
    api.register_worker(handlers)
    key = api.client.broker.keys.worker(api.worker_id)
    fields = ("host", "version", "queues")
    api.client.server.call("HSET", key, *(part for name in fields for part in (name, HOSTILE)))
    for path in ("/", "/workers", "/queues/default", "/tasks/new", f"/tasks/new?{urlencode({'task_type': HOSTILE})}"):
        html = page(api, path)
        assert "<img" not in html, path
        assert "{{7*7}}" in html or path in ("/", "/queues/default"), path
    for name, html in fragments(api, "/workers").items():
        assert "<img" not in html, name


@pytest.mark.parametrize(
    "to", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/\t/evil"]
)
def test_signing_in_leads_nowhere_else(server: Server, tmp_path: Path, to: str) -> None:
    path = tmp_path / "keys"
    key = create_key(path, "anna", "admin")
    with running_dashboard(server.safe_url, api_keys_file=str(path), protect="all") as api:
        assert 'name="to" value="/"' in api.http.get("/sign-in", query_string={"to": to}).text
        answer = post(api, "/sign-in", key=key, to=to)
        assert (answer.status_code, answer.headers["Location"]) == (303, "/")


def test_hosts_that_share_a_secret_know_each_others_browsers_and_their_forms(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key = create_key(path, "anna", "admin")

    def host(secret: str) -> Any:
        return running_dashboard(server.safe_url, api_keys_file=str(path), protect="all", secret_key=secret)

    with host("s" * 32) as one, host("s" * 32) as other, host("t" * 32) as stranger:
        post(one, "/sign-in", key=key)
        cookie = one.http.get_cookie("dtq_session")
        assert cookie is not None
        token = re.search(r'name="csrf_token" value="(\w+)"', page(one, "/queues"))
        assert token is not None
        for api, status in ((other, 303), (stranger, 403)):
            api.http.set_cookie("dtq_session", cookie.value)
            old_browser = {"data": {"csrf_token": token[1]}, "headers": {"Accept": "text/html"}}
            assert api.http.post("/queues/mail/pause", **old_browser).status_code == status
        assert "paused" in page(other, "/queues/mail")
        assert stranger.http.get("/queues", headers={"Accept": "text/html"}).status_code == 303


def test_who_may_only_look_cannot_reveal(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key = create_key(path, "anna", "submit")
    with running_dashboard(server.safe_url, api_keys_file=str(path), protect="all") as api:
        task = api.client.submit("echo", {"password": "hunter2-Zq"})
        post(api, "/sign-in", key=key)
        html = page(api, f"/tasks/{task.task_id}")
        assert "/reveal" not in html
        assert "hunter2-Zq" not in html
        answer: Any = post(api, f"/tasks/{task.task_id}/reveal")
        assert answer.status_code == 403
        assert "hunter2-Zq" not in answer.text
        assert said(api) == ""
