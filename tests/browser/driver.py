"""A real browser: the Chromium that the machine has, driven over its debugging protocol."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.web_server import WebServer

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
    *("/hour", "/queues/webhooks/hour", "/queues/webhooks/purge", "/messages/commands/retry/purge"),
)
"""Every page, as a lively server has it, but for those of single tasks."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
AXE = Path(__file__).parent / "vendor" / "axe-core@4.14.1" / "axe.min.js"
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
_RUN = """(what) => axe.run(
    {exclude: [['tbody tr:nth-child(n + 7)']]}, {runOnly: what, resultTypes: ['violations'], elementRef: false})"""
"""Further rows are as the first ones."""


def chromium() -> str | None:
    """Return the path of a Chromium, DTQ_TEST_CHROMIUM before those on PATH; None when there is none."""
    return os.environ.get("DTQ_TEST_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def launched(path: str) -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


def violations(page: Any, only: Sequence[str] = ()) -> list[str]:
    """Return what axe-core finds on a page, a line each. only: rules to look at instead of all."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    what = {"type": "rule", "values": list(only)} if only else {"type": "tag", "values": list(RULES)}
    found = page.evaluate(_RUN, what)
    return [
        f"{one['id']}: {node['html'][:160]} ({node['failureSummary'].splitlines()[-1].strip()[:200]})"
        for one in found["violations"]
        for node in one["nodes"][:3]
    ]


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


def url_of(server: WebServer, path: str) -> str:
    return f"http://127.0.0.1:{server.port}{path}"
