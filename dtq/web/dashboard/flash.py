"""What a page says once, after an action: kept in a cookie for the time of a redirect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal
from urllib.parse import quote, unquote

from flask import Response, request

COOKIE = "dtq_said"
KEEP_S = 20
MOST_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One thing that was said."""

    kind: Literal["done", "failed"]
    text: str
    link: str = ""
    """A path of this server, or nothing."""
    link_text: str = ""


def say(response: Response, said: Said) -> None:
    """Let the next page say it."""
    told = json.dumps({**asdict(said), "text": said.text[:MOST_CHARS]}, separators=(",", ":"))
    response.set_cookie(COOKIE, quote(told, safe=""), max_age=KEEP_S, httponly=True, samesite="Strict", path="/")


def heard() -> Sequence[Said]:
    """Return what is to be said now; what cannot be read is nothing."""
    try:
        found = json.loads(unquote(request.cookies.get(COOKIE, "")))
        said = Said(
            kind="done" if found["kind"] == "done" else "failed",
            text=str(found["text"])[:MOST_CHARS],
            link=own_path(str(found["link"])) if found["link"] else "",
            link_text=str(found["link_text"])[:40],
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
    return (said,)


def forget(response: Response) -> None:
    """Let it be said once only."""
    response.delete_cookie(COOKIE, httponly=True, samesite="Strict", path="/")


def own_path(path: str) -> str:
    """Return a path of this server; the first page instead of anything else."""
    plain = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and len(path) < 4000
    return path if plain else "/"
