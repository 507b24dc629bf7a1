"""Pages as a browser gets them, without one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any

from dtq.web.dashboard.live import _drawing
from dtq.web.dashboard.viewer import Viewer
from tests.support.web import Api, running_api

PATHS = (
    *("/", "/queues", "/queues/email", "/queues/never-used", "/tasks", "/tasks/new", "/failures", "/dead", "/workers"),
    *("/hour", "/queues/email/hour", "/messages", "/bulk", "/events", "/audit", "/settings"),
)
VOID = frozenset(["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"])


class Document(HTMLParser):
    """Reads a page and notes what must not be in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.faults: list[str] = []
        self.feed(html)
        self.close()
        if self.open:
            self.faults.append(f"left open: {self.open}")

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag == "script" and "src" not in given:
            self.faults.append("an inline script")
        if tag == "style" or "style" in given:
            self.faults.append(f"an inline style in {tag}")
        self.faults += [f"a handler {name}" for name in given if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.faults.append(f"</{tag}> closes {self.open[-1:]}")
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def ids(self) -> list[str]:
        return [str(attrs["id"]) for _, attrs in self.tags if "id" in attrs]

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@contextmanager
def running_dashboard(redis_url: str, **settings: Any) -> Iterator[Api]:
    """An application that serves everything, and what belongs to it."""
    with running_api(redis_url, **{"serve": "all", **settings}) as api:
        yield api


def page(api: Api, path: str, status: int = 200, **options: Any) -> str:
    """Get a page, which must have the status and be sound, and return its HTML."""
    response = api.http.get(path, headers={"Accept": "text/html"}, **options)
    assert response.status_code == status, f"{path}: {response.status_code}"
    assert response.mimetype == "text/html", path
    document = Document(response.text)
    assert document.faults == [], f"{path}: {document.faults[:5]}"
    doubles = [one for one in document.ids() if document.ids().count(one) > 1]
    assert not doubles, f"{path}: ids that stand twice: {set(doubles)}"
    return str(response.text)


def post(api: Api, path: str, **fields: Any) -> Any:
    """Send a form as a browser does, without following where it leads."""
    return api.http.post(path, data=fields, headers={"Accept": "text/html", "Sec-Fetch-Site": "same-origin"})


def said(api: Api, path: str = "/queues") -> str:
    """Return what the next page says of the last action."""
    found = re.search(r'<p class="toast [^"]*">.*?<span>(.*?)</span>', page(api, path), re.DOTALL)
    return found[1] if found else ""


def fragments(api: Api, path: str, rows: str = "") -> dict[str, str]:
    """Return what is pushed to a tab that shows a path."""
    with api.app.app_context():
        drawing = _drawing()
    screen = drawing.screen(path, rows.split(), Viewer())
    assert screen is not None, path
    return dict(drawing.draw(screen, drawing.look()))
