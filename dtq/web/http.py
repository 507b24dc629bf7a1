"""Requests and responses: ids, bodies within their limits, headers, JSON answers."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from flask import Flask, Response, request
from werkzeug.datastructures import Headers
from werkzeug.http import parse_options_header
from werkzeug.routing import BaseConverter, RequestRedirect
from werkzeug.sansio.utils import get_content_length

from dtq.errors import InvalidRequest, PayloadTooLarge, TaskNotFound
from dtq.keys import TASK_ID
from dtq.strictjson import dump_json, fault
from dtq.web.errors import UnsupportedMediaType

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

BODY_MARGIN_BYTES = 64 * 1024
"""What a body may have beyond the limit of its payload: other fields, white space, escapes."""

MAX_BATCH_BYTES = 8 * 1024 * 1024
MAX_SMALL_BODY_BYTES = 16 * 1024
"""Of the bodies that hold options and no payload."""

_READ_BYTES = 64 * 1024
_HINT = "send text as UTF-8, not as \\u escapes, and large data by reference"
_SAFE_ID = re.compile(r"[A-Za-z0-9_.:@/+=-]{1,64}")
_ID_KEY = "dtq.request_id"
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')  # RFC 9651, section 3.3.3


SIBLINGS = ("batch", "cancel", "discard", "purge", "requeue")
"""What stands in a path in the place of a task id and is none."""


class TaskIdConverter(BaseConverter):
    """`<task:task_id>` in a path: whatever may be meant as an id, but no word that names a sibling path."""

    regex = rf"(?!(?:{'|'.join(SIBLINGS)})(?:/|$))[^/]+"


def checked_task_id(task_id: str) -> str:
    """Return a task id from a path. Raises TaskNotFound for what can be none, without asking Redis."""
    if not TASK_ID.fullmatch(task_id):
        raise TaskNotFound("there is no such task: ids are 32 hexadecimal digits")
    return task_id


def request_id() -> str:
    """Return the id of the request: the caller's `X-Request-ID` if that is safe to repeat, else one of our own."""
    return request_id_of(request.environ)


def request_id_of(environ: WSGIEnvironment) -> str:
    """Return the id of the request with this environment."""
    known = environ.get(_ID_KEY)
    if known is None:
        offered = environ.get("HTTP_X_REQUEST_ID")
        if offered is None or not _SAFE_ID.fullmatch(offered):
            offered = f"{random.getrandbits(96):024x}"  # tells requests apart, and protects nothing
        known = environ[_ID_KEY] = offered
    return cast(str, known)


def register(app: Flask) -> None:
    """Give every response of the app its id, and headers that suit what is asked for anew each time; know task ids."""
    app.after_request(_finish)
    app.url_map.converters["task"] = TaskIdConverter


def _finish(response: Response) -> Response:
    if isinstance(request.routing_exception, RequestRedirect):  # to a path: the Host header may name any server
        to = urlsplit(response.headers["Location"])
        response.headers["Location"] = f"/{to.path.lstrip('/')}{'?' if to.query else ''}{to.query}"
    for name, value in common_headers(request.environ):
        if name not in response.headers:
            response.headers.add(name, value)
    return response


def common_headers(environ: WSGIEnvironment) -> list[tuple[str, str]]:
    """Return the headers that every response has, unless the view says otherwise."""
    return [
        ("X-Request-ID", request_id_of(environ)),
        ("X-Content-Type-Options", "nosniff"),
        ("Cache-Control", "no-store"),
    ]


class FinishedResponse(Response):
    """A response whose headers are complete and plain ASCII: they are not looked over and corrected once more."""

    def get_wsgi_headers(self, environ: WSGIEnvironment) -> Headers:
        """Return the headers as they are; the stock method costs more than making the whole answer."""
        return self.headers


def answer(
    value: Mapping[str, Any],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    content_type: str = "application/json",
) -> Response:
    """Return a JSON response. headers: plain ASCII."""
    body = json_body(value)
    response = FinishedResponse(body, status, headers, content_type=content_type)
    response.headers["Content-Length"] = str(len(body))
    return response


def json_body(value: Mapping[str, Any]) -> bytes:
    """Return an answer as bytes."""
    return dump_json(value) + b"\n"  # a shell's prompt begins on a line of its own


def read_json_body(environ: WSGIEnvironment, limit: int) -> bytes:
    """Return the bytes of a body that says it is JSON and has at most `limit` bytes.

    Raises UnsupportedMediaType, PayloadTooLarge (before anything is read, if its length is announced), InvalidRequest
    when it breaks off.
    """
    _require_json(environ.get("CONTENT_TYPE", ""))
    return _read_body(environ, limit)


def read_optional_json_body(limit: int = MAX_SMALL_BODY_BYTES) -> bytes:
    """Return the bytes of a body as `read_json_body` does, or nothing when there is none."""
    body = _read_body(request.environ, limit)
    if body:
        _require_json(request.environ.get("CONTENT_TYPE", ""))
    return body


def read_bytes(limit: int) -> bytes:
    """Return the bytes of a body of any type, which may be missing. Raises PayloadTooLarge, InvalidRequest."""
    return _read_body(request.environ, limit, "put large data elsewhere, and its place into the message")


def _require_json(content_type: str) -> None:
    if content_type == "application/json":
        return
    media_type, options = parse_options_header(content_type)
    charset = options.pop("charset", "utf-8").lower()
    if media_type.lower() != "application/json" or charset != "utf-8" or options:
        raise UnsupportedMediaType("send the body as Content-Type: application/json (UTF-8)")


def _read_body(environ: WSGIEnvironment, limit: int, hint: str = _HINT) -> bytes:
    length = get_content_length(environ.get("CONTENT_LENGTH"), environ.get("HTTP_TRANSFER_ENCODING"))
    if length is None and "wsgi.input_terminated" not in environ:
        return b""  # no length and no end: no body
    if length is not None and length > limit:
        raise _too_large(limit, hint)
    stream, pieces, missing = environ["wsgi.input"], [], limit + 1 if length is None else length
    try:
        while missing > 0 and (piece := stream.read(min(missing, _READ_BYTES))):
            pieces.append(piece)
            missing -= len(piece)
    except Exception as error:  # the web server's own ways to say that chunks are malformed or the client is gone
        raise InvalidRequest(f"the body could not be read: {type(error).__name__}") from None
    if length is None and missing == 0:
        raise _too_large(limit, hint)
    if length is not None and missing:
        raise InvalidRequest("the body ended before its announced length")
    return b"".join(pieces)


def _too_large(limit: int, hint: str) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body has more than {limit} bytes; {hint}", limit=limit)


def idempotency_key(environ: WSGIEnvironment) -> str | None:
    """Return the `Idempotency-Key` header, bare or as a quoted string (RFC 9651), or None without one.

    Both forms are the same key. Raises InvalidRequest for what begins with a quote and is no such string (parameters,
    several strings, more than ASCII), or bytes that are not UTF-8.
    """
    header = environ.get("HTTP_IDEMPOTENCY_KEY")
    if header is None:
        return None
    try:
        key: str = header.encode("latin-1").decode("utf-8")
    except UnicodeError:
        raise _bad_key("is not UTF-8") from None
    key = key.strip(" \t")
    if not key.startswith('"'):
        return key
    quoted = _QUOTED.fullmatch(key)
    if quoted is None:
        raise _bad_key('begins with a quote and is not one quoted string of ASCII, with \\ before " and \\ in it')
    return re.sub(r'\\(["\\])', r"\1", quoted[1])


def _bad_key(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"the Idempotency-Key header {what}", errors=[fault("/idempotency_key", f"the header {what}")]
    )
