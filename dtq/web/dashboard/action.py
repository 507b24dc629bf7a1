"""What a form does: checked, done, and answered by a redirect to the page that it stood on (303).

@action("/queues/<queue>/pause", need="destructive")
def pause(queue: str) -> Said: ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Response, redirect, request
from werkzeug.wrappers import Response as WerkzeugResponse

from dtq.errors import DtqError, RedisUnavailable
from dtq.web.auth import Need
from dtq.web.dashboard.flash import Said, own_path, say
from dtq.web.dashboard.page import bp
from dtq.web.sessions import allow_page

Do = Callable[..., Said | WerkzeugResponse]


def action(rule: str, *, need: Need = "destructive") -> Callable[[Do], Do]:
    """Register what a form does. It returns what is to be said, or a response of its own.

    An error of dtq is said too, on the same page; only when Redis is away there is none to go back to.
    """

    def decorate(do: Do) -> Do:
        def view(**path: Any) -> WerkzeugResponse:
            allow_page(need)
            try:
                done = do(**path)
            except RedisUnavailable:
                raise
            except DtqError as error:
                done = Said(kind="failed", text=sentence(error.message))
            return done if isinstance(done, WerkzeugResponse) else back(done)

        bp.add_url_rule(rule, f"do_{do.__module__.rpartition('.')[2]}_{do.__name__}", view, methods=["POST"])
        return do

    return decorate


def back(said: Said, to: str = "") -> Response:
    """Return to the page that the form stood on, or to another one, and say what was done there."""
    response: Any = redirect(to or own_path(request.form.get("back", "/")), 303)
    say(response, said)
    return response  # type: ignore[no-any-return]


def sentence(text: str) -> str:
    """Return a message of an error as it stands alone."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
