"""Draws the parts of pages outside of a request, for the tabs that show them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import parse_qsl

from flask import Flask, g, render_template
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import HTTPException
from werkzeug.routing import MapAdapter
from werkzeug.wrappers import Response as WerkzeugResponse

from dtq.events import Subscription
from dtq.web.dashboard.page import PAGES, Page, clock_of, environment
from dtq.web.dashboard.reads import Reads
from dtq.web.dashboard.viewer import Viewer
from dtq.web.engine import Engine

MOST_ROWS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """What a tab shows, and to whom. Tabs with equal ones are drawn for once."""

    page: Page
    path: str
    """The address, with its query."""
    query: str
    values: tuple[tuple[str, str], ...]
    """The parts of the path that vary."""
    rows: tuple[str, ...]
    """The ids of the tasks whose rows it shows."""
    viewer: Viewer

    @property
    def task_id(self) -> str:
        """The task that it is about; empty for none."""
        return dict(self.values).get("task_id", "")

    @property
    def queue(self) -> str:
        """The queue that it is about; empty for none."""
        return dict(self.values).get("queue", "")


class Drawing:
    """The application, as it is needed outside of a request."""

    def __init__(self, app: Flask) -> None:
        self._app = app
        self._engine = cast(Engine, app.extensions["dtq"])
        self._adapter: MapAdapter = app.url_map.bind("")

    @property
    def stopping(self) -> threading.Event:
        """Set when the process is to end."""
        return self._engine.stopping

    def events(self, on_ready: Callable[[], None], capacity: int) -> Subscription:
        """Return what happens from now on."""
        return self._engine.client.events.subscribe(capacity=capacity, on_ready=on_ready)

    def screen(self, path: str, rows: Collection[str], viewer: Viewer) -> Screen | None:
        """Return what an address shows; None when it is no page that can be kept up to date."""
        bare, _, query = path.partition("?")
        try:
            endpoint, values = self._adapter.match(bare, method="GET")
        except HTTPException:
            return None
        page = PAGES.get(endpoint)
        if page is None or not page.parts:
            return None
        shown = tuple(row for row in rows if row.isalnum())[: MOST_ROWS if page.row else 1]
        return Screen(
            page=page, path=path, query=query, values=tuple(sorted(values.items())), rows=shown, viewer=viewer
        )

    def look(self) -> Reads:
        """Return a fresh look at Redis."""
        return Reads(self._engine.client, clock_of(self._app))

    def note_gauges(self) -> None:
        """Note for the charts how much waits, where no worker leads that would do so."""
        client = self._engine.client
        if client.queries.leader() is None:
            client.broker.upkeep.sample()

    def draw(self, screen: Screen, look: Reads, only: Collection[str] | None = None) -> Mapping[str, str]:
        """Return the fragments of a screen by the id of what each replaces.

        only: the tasks of whose rows something happened; None: draw all rows.
        Raises what reading the page raises.
        """
        with self._app.app_context():
            g.viewer, g.now, g.area = screen.viewer, look.now, screen.page.area
            g.token, g.back, g.origin, g.environment = "", screen.path, "", environment(self._engine.settings)
            asked = MultiDict(parse_qsl(screen.query))
            if "newer" in screen.page.parts:
                asked["_first"] = screen.rows[0] if screen.rows else "0"  # before every id
            context = screen.page.load(look, asked, **dict(screen.values))
            if isinstance(context, WerkzeugResponse):
                return {}
            drawn = {
                name: _partial(name, "innerMorph", render_template(template, **context))
                for name, template in screen.page.parts.items()
            }
            rows = screen.rows if only is None else tuple(row for row in screen.rows if row in only)
            return drawn | self._rows(screen.page, look, rows)

    def _rows(self, page: Page, look: Reads, rows: tuple[str, ...]) -> dict[str, str]:
        if not rows or not page.row:
            return {}
        found = {}
        for task in look.client.queries.some_tasks(rows):
            if task is not None:
                name = f"t-{task.task_id}"
                found[name] = _partial(name, "outerMorph", render_template(page.row, task=task))
        return found


def _partial(target: str, swap: str, html: str) -> str:
    return f'<hx-partial hx-target="#{target}" hx-swap="{swap}">{html}</hx-partial>'
