"""How things are shown, and signing in and out."""

from __future__ import annotations

from flask import Response, redirect, request

from dtq.errors import DtqError
from dtq.web.dashboard.action import action, sentence
from dtq.web.dashboard.flash import Said, own_path, say
from dtq.web.dashboard.page import bp, html, prepare
from dtq.web.dashboard.viewer import COOKIES, YEAR_S, zone
from dtq.web.sessions import sign_in, sign_out


@action("/preferences", need="nothing")
def keep() -> Response:
    """Keep how times and colours are to be shown, in cookies."""
    response = _to(request.form.get("back", "/"))
    for name, cookie in COOKIES.items():
        value = request.form.get(name, "").strip()
        if name == "zone" and value and zone(value) is None:
            say(
                response,
                Said(kind="failed", text=f"There is no time zone {value[:60]}; take one such as Europe/Paris."),
            )
        elif value:
            response.set_cookie(cookie, value[:60], max_age=YEAR_S, samesite="Lax", path="/")
    return response


@bp.get("/sign-in")
def form() -> Response:
    """Show the form that takes a key."""
    prepare()
    return html("sign-in.html", title="Sign in", to=own_path(request.args.get("to", "/")), fault="")


@bp.post("/sign-in")
def signing_in() -> Response:
    """Take the key, and lead to where it was asked for."""
    to = own_path(request.form.get("to", "/"))
    response = _to(to)
    try:
        sign_in(response, request.form.get("key", ""))
    except DtqError as error:
        prepare()
        return html("sign-in.html", error.http_status, title="Sign in", to=to, fault=sentence(error.message))
    return response


@action("/sign-out", need="nothing")
def signing_out() -> Response:
    """Forget who it was."""
    response = _to("/")
    sign_out(response)
    return response


def _to(path: str) -> Response:
    made = redirect(own_path(path), 303)
    return Response(made.get_data(), made.status_code, dict(made.headers))
