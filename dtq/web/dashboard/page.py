"""What a page is: an address, what it reads, and the parts of it that are swapped and kept up to date.

    @page("/queues", area="queues", parts={"rows": "queues/_rows.html"})
    def index(reads: Reads, asked: Asked) -> Context: ...

The whole page includes the same partials that a swap or a push sends: each part stands in an element whose id is its
name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from flask import Blueprint, Flask, Response, current_app, g, make_response, render_template, request
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response as WerkzeugResponse

from dtq.settings import Settings
from dtq.web.dashboard.access import current_viewer
from dtq.web.dashboard.flash import forget, heard
from dtq.web.dashboard.reads import Clock, Reads
from dtq.web.engine import engine
from dtq.web.sessions import allow_page, csrf_token

Context = Mapping[str, Any]
Asked = MultiDict[str, str]
Load = Callable[..., Context | WerkzeugResponse]

bp = Blueprint("dashboard", __name__)

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Page:
    """A page of the dashboard."""

    area: str
    """The directory of its templates and its item in the navigation."""
    template: str
    load: Load
    parts: Mapping[str, str]
    """The templates of what changes by itself, by the id of the element around each."""
    row: str = ""
    """The template of the row of a task; empty when the page has none. A row is `t-<task id>`."""
    every_s: float = 5.0
    """How often it is looked at when nothing is heard of it."""


PAGES: dict[str, Page] = {}
"""By endpoint."""


def page(
    rule: str,
    *,
    area: str,
    name: str = "index",
    parts: Mapping[str, str] | None = None,
    row: str = "",
    every_s: float = 5.0,
    template: str = "",
) -> Callable[[Load], Load]:
    """Register a page. Its loader gets a look at Redis, the query of the URL, and the parts of the path."""

    def decorate(load: Load) -> Load:
        made = Page(
            area=area,
            template=template or f"{area}/{name}.html",
            load=load,
            parts=parts or {},
            row=row,
            every_s=every_s,
        )

        def view(**path: Any) -> Response:
            allow_page("read")
            return answer(made, **path)

        endpoint = f"{area}_{name}"
        bp.add_url_rule(rule, endpoint, view)
        PAGES[f"{bp.name}.{endpoint}"] = made
        return load

    return decorate


def look() -> Reads:
    """Return a fresh look at Redis, and let the templates know what time it is there."""
    reads = Reads(engine().client, clock_of(current_app))
    g.now = reads.now
    return reads


def answer(shown: Page, status: int = 200, **path: Any) -> Response:
    """Return the page as a response; for a swap of htmx, only what stands in its frame."""
    prepare()
    context = shown.load(look(), request.args, **path)
    if isinstance(context, WerkzeugResponse):  # it leads elsewhere
        return make_response(context)
    g.area, g.live = shown.area, bool(shown.parts)
    return html(shown.template, status, **context)


def prepare() -> None:
    """Let the templates know who looks, and what their forms send along."""
    g.viewer = current_viewer()
    g.area, g.now, g.live = "", 0.0, False
    g.environment = environment(engine().settings)
    g.token = csrf_token()
    g.back = request.full_path.rstrip("?")
    g.origin = request.host_url.rstrip("/")


def environment(settings: Settings) -> str:
    """Return what tells this dtq from others: its namespace, if it has one of its own."""
    name = settings.namespace.strip("{}")
    return "" if name == "dtq" else name


def html(template: str, code: int = 200, **context: Any) -> Response:
    """Return a rendered template as a response."""
    swap = request.headers.get("HX-Request-Type") == "partial"
    layout = "layout/swap.html" if swap else "layout/page.html"
    flashes = heard()
    response = make_response(render_template(template, layout=layout, flashes=flashes, **context), code)
    response.headers["Vary"] = "HX-Request-Type, Cookie"
    if flashes:
        forget(response)
    return response


def clock_of(app: Flask) -> Clock:
    """Return what tells Redis's time in this process."""
    return cast(Clock, app.extensions.setdefault("dtq-dashboard-clock", Clock()))
