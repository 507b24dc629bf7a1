"""The dashboard: pages that are complete without a script, and live with one. One file an area.

`page` says what a page is, `reads` what it is made of, `live` how it is kept up to date.
"""

from __future__ import annotations

from typing import cast

from flask import Flask, Response
from jinja2 import StrictUndefined

from dtq.attention import by_subject
from dtq.taskquery import quoted
from dtq.web.dashboard import (
    actions,
    assets,
    audit,
    bulk,
    cancel,
    dead,
    events,
    failures,
    faults,
    live,
    messages,
    overview,
    preferences,
    queues,
    settings,
    shapes,
    submit,
    task,
    tasks,
    words,
    workers,
)
from dtq.web.dashboard.page import CONTENT_SECURITY_POLICY, PAGES, bp
from dtq.web.engine import Engine
from dtq.web.http import BODY_MARGIN_BYTES

__all__ = ["register"]

_AREAS = (
    actions,
    audit,
    bulk,
    cancel,
    dead,
    events,
    failures,
    live,
    messages,
    overview,
    preferences,
    queues,
    settings,
    submit,
    task,
    tasks,
    workers,
)
"""Their pages are registered by importing them."""

_FILTERS = {
    "ago": words.moment,
    "bytes": words.size,
    "clock": words.clock_time,
    "duration": words.duration,
    "minute": words.minute_of_day,
    "number": words.number,
    "short_id": words.short_id,
    "short_number": words.short_number,
    "ticking": words.ticking,
}
_GLOBALS = {
    "area_path": shapes.area,
    "bar_path": shapes.bars,
    "asset": assets.asset_url,
    "by_subject": by_subject,
    "line_path": shapes.line,
    "link": words.link,
    "plural": words.plural,
    "quoted": quoted,
    "share": words.share,
    "shares": shapes.shares,
    "stacked": shapes.stacked,
    "steps": shapes.steps,
    "top_of": shapes.top_of,
    "words": words.STATUS,
}


_FORM_SPELLING = 4
"""How much larger a payload may be in a form than as compact JSON: escaped for the form, and indented."""


def register(app: Flask) -> None:
    """Serve the dashboard in an application."""
    app.template_folder = str(assets.DIRECTORY.parent / "templates")
    env = app.jinja_env
    env.trim_blocks = env.lstrip_blocks = True
    env.filters.update(_FILTERS)
    env.globals.update(_GLOBALS)
    most_bytes = _FORM_SPELLING * cast(Engine, app.extensions["dtq"]).limits.max_payload_bytes + BODY_MARGIN_BYTES
    app.config.update(MAX_CONTENT_LENGTH=most_bytes, MAX_FORM_MEMORY_SIZE=most_bytes)
    faults.register(app)
    live.register(app)
    env.globals["areas"] = frozenset(page.area for page in PAGES.values())
    for name in ("ui", "charts"):  # macros, for every template
        env.globals[name] = env.get_template(f"{name}.html").module
    env.undefined = StrictUndefined
    app.register_blueprint(bp)
    app.register_blueprint(assets.bp)
    app.after_request(_finish)


def _finish(response: Response) -> Response:
    if response.mimetype != "text/html":
        return response
    response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    response.headers["Referrer-Policy"] = "same-origin"
    response.headers["X-Robots-Tag"] = "noindex"
    return response
