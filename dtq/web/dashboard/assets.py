"""The style sheet, the scripts and the icon: read once, packed once, and named by what is in them."""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flask import Blueprint, Response, abort, request

bp = Blueprint("static", __name__)

DIRECTORY = Path(__file__).parents[3] / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, plain and packed."""

    plain: bytes
    packed: bytes
    digest: str
    content_type: str


@functools.cache
def assets() -> Mapping[str, Asset]:
    """Return the files by their path below the directory."""
    found = {}
    for path in sorted(DIRECTORY.rglob("*")):
        if path.suffix in _TYPES and path.is_file():
            plain = path.read_bytes()
            found[path.relative_to(DIRECTORY).as_posix()] = Asset(
                plain=plain,
                packed=gzip.compress(plain, 9, mtime=0),
                digest=hashlib.sha256(plain).hexdigest()[:12],
                content_type=f"{_TYPES[path.suffix]}; charset=utf-8",
            )
    return found


def asset_url(name: str) -> str:
    """Return where a file is to be had: its contents decide the address, so a browser may keep it for ever."""
    return f"/static/{name}?v={assets()[name].digest}"


@bp.get("/static/<path:name>")
def static(name: str) -> Response:
    """Send a file."""
    found = assets().get(name)
    if found is None:
        abort(404)
    packed = "gzip" in request.headers.get("Accept-Encoding", "")
    response = Response(found.packed if packed else found.plain, content_type=found.content_type)
    if packed:
        response.headers["Content-Encoding"] = "gzip"
    response.headers["Vary"] = "Accept-Encoding"
    response.headers["Cache-Control"] = _FOR_EVER if request.args.get("v") == found.digest else "no-cache"
    response.set_etag(found.digest + ("-gz" if packed else ""))
    response.make_conditional(request)
    return response
