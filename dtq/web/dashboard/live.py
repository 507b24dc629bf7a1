"""How a tab hears of what changes: over a WebSocket, or, where none gets through, by asking again and again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from flask import Flask, Response, current_app, request

from dtq.errors import DtqError, InvalidTask, RedisUnavailable
from dtq.strictjson import load_json
from dtq.web.dashboard.access import current_viewer
from dtq.web.dashboard.drawing import Drawing, Screen
from dtq.web.dashboard.hub import Hub, Tab
from dtq.web.dashboard.page import bp
from dtq.web.dashboard.viewer import Viewer
from dtq.web.errors import UpgradeRequired
from dtq.web.http import answer, read_json_body
from dtq.web.sessions import allow_page
from dtq.web.sockets import serve
from dtq.web.websocket import RESTART, Hangup, WebSocket

LONGEST_S = 1800.0
"""A socket that lasts longer is closed, so that its browser comes again and shows that it still may."""
MOST_BYTES = 8 * 1024


def register(app: Flask) -> None:
    """Make what keeps the tabs of an application up to date. Its thread begins with the first tab."""
    drawing = Drawing(app)
    app.extensions["dtq-dashboard-drawing"] = drawing
    app.extensions["dtq-dashboard-hub"] = Hub(drawing)


def hub_of(app: Flask) -> Hub:
    """Return what keeps the tabs of an application up to date."""
    return cast(Hub, app.extensions["dtq-dashboard-hub"])


def _drawing() -> Drawing:
    return cast(Drawing, current_app.extensions["dtq-dashboard-drawing"])


@bp.get("/ws/dashboard", websocket=True)
def socket() -> Response:
    """Keep a tab up to date. It says what it shows: `{"path": "/tasks?q=...", "rows": "id id id"}`."""
    return serve(partial(_talk, current_viewer(), hub_of(current_app)))


@bp.get("/ws/dashboard")
def no_socket() -> Response:
    """Say what the path speaks."""
    raise UpgradeRequired("this path speaks WebSocket")


def _talk(viewer: Viewer, hub: Hub, ws: WebSocket) -> None:
    tab, drawing = Tab(ws.wake), _drawing()
    ends_at = time.monotonic() + LONGEST_S
    hub.open(tab)
    try:
        ws.accept()
        while time.monotonic() < ends_at:
            for message in ws.wait(60.0):
                screen = _screen(message, drawing, viewer)
                if screen is not None:
                    tab.show(screen)
                    hub.ring()
            frame = tab.take()
            if frame is not None:
                ws.send([frame])
        raise Hangup(RESTART, "come again")
    finally:
        hub.close(tab)


@bp.post("/live")
def ask() -> Response:
    """Answer once what a socket would have said: for tabs that get none."""
    allow_page("read")
    drawing = _drawing()
    screen = _screen(read_json_body(request.environ, MOST_BYTES), drawing, current_viewer())
    if screen is None:
        return answer({})
    look = drawing.look()
    try:
        content = "".join(drawing.draw(screen, look).values())
    except RedisUnavailable:
        raise
    except DtqError:  # what it shows is gone
        content = ""
    return answer({"at": round(look.now, 3), "content": content})


def _screen(message: str | bytes, drawing: Drawing, viewer: Viewer) -> Screen | None:
    """Return what a tab says it shows; None for what makes no sense."""
    try:
        told: Any = load_json(message.encode() if isinstance(message, str) else message)
    except InvalidTask:
        return None
    if not isinstance(told, Mapping):
        return None
    path, rows = told.get("path"), told.get("rows", "")
    if not isinstance(path, str) or not isinstance(rows, str):
        return None
    return drawing.screen(path, rows.split(), viewer)
