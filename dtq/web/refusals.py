"""Answers to what never becomes a request for the application: not HTTP, or more of it than is read."""

from __future__ import annotations

import json
import os
from http import HTTPStatus

from gunicorn.http import errors

_REFUSALS: tuple[tuple[type[BaseException], int, str], ...] = (
    (errors.InvalidResponseHeader, 500, "INTERNAL_ERROR"),  # type: ignore[attr-defined]
    (errors.InvalidResponseHeaderName, 500, "INTERNAL_ERROR"),  # type: ignore[attr-defined]
    (errors.LimitRequestLine, 414, "URI_TOO_LONG"),
    (errors.LimitRequestHeaders, 431, "HEADERS_TOO_LARGE"),
    (errors.ExpectationFailed, 417, "EXPECTATION_FAILED"),
    (errors.UnsupportedTransferCoding, 501, "UNSUPPORTED_TRANSFER_CODING"),
    (errors.ParseException, 400, "BAD_REQUEST"),
    (BaseException, 500, "INTERNAL_ERROR"),
)
"""The first class that fits decides."""


def refusal(error: BaseException) -> tuple[bytes, int, str]:
    """Return a whole response with a problem document like any other error, its status and its request id."""
    status, code = next((status, code) for kind, status, code in _REFUSALS if isinstance(error, kind))
    request_id = os.urandom(12).hex()
    return _response(HTTPStatus(status), code, request_id), status, request_id


def _response(status: HTTPStatus, code: str, request_id: str) -> bytes:
    said = status.description or "the request could not be read"
    document = {
        "type": "about:blank",
        "title": status.phrase,
        "status": status.value,
        "detail": said,
        "code": code,
        "message": said,
        "request_id": request_id,
    }
    body = json.dumps(document).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\nContent-Type: application/problem+json\r\n"
        f"Content-Length: {len(body)}\r\nX-Request-ID: {request_id}\r\nX-Content-Type-Options: nosniff\r\n"
        "Cache-Control: no-store\r\n\r\n"
    )
    return head.encode("latin-1") + body
