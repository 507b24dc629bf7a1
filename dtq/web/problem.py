"""Every error as a problem document (RFC 9457): what machines need, what people read, and never a traceback."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from dtq.errors import DtqError, KeyMissing, RedisUnavailable
from dtq.redisio import CommandError
from dtq.strictjson import dump_json
from dtq.web.errors import SignInNeeded, UpgradeRequired
from dtq.web.http import request_id

log = logging.getLogger(__name__)

RETRY_AFTER_S = 2
"""What is suggested while Redis is away."""

_AWAY_LOG_INTERVAL_S = 10.0
_RESERVED = frozenset({"type", "title", "status", "detail", "code", "message", "request_id"})


def problem(error: DtqError) -> dict[str, Any]:
    """Return the document for an error. The members of its context stand beside the standard ones."""
    document: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(error.http_status).phrase,
        "status": error.http_status,
        "detail": error.message,
        "code": error.code,
        "message": error.message,
        "request_id": request_id(),
    }
    for name, value in error.context.items():
        document[f"task_{name}" if name in _RESERVED else name] = value
    return document


def answer_problem(document: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """Return the response for a document made by `problem`."""
    response = Response(dump_json(document), document["status"], headers)
    response.content_type = "application/problem+json"
    return response


def register(app: Flask) -> None:
    """Let every error of the app end as a problem document."""
    app.register_error_handler(DtqError, _on_dtq_error)
    app.register_error_handler(HTTPException, on_http_error)
    app.register_error_handler(Exception, _on_surprise)


class _AwayLog:
    """Says that Redis is away, but not once for every request."""

    def __init__(self) -> None:
        self._next = 0.0

    def warn(self, error: RedisUnavailable) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _AWAY_LOG_INTERVAL_S
            log.warning("redis is away", extra={"request_id": request_id(), "error": str(error)})


_away = _AwayLog()


def log_away(error: RedisUnavailable) -> None:
    """Say in the log that Redis is away, unless that was said just now."""
    _away.warn(error)


def _on_dtq_error(error: DtqError) -> Response:
    if isinstance(error, CommandError):  # what Redis says of a command is nobody's business outside
        return _on_surprise(error)
    if isinstance(error, RedisUnavailable):
        _away.warn(error)
    elif error.http_status >= 500 and error.http_status != HTTPStatus.SERVICE_UNAVAILABLE:
        log.error("a request failed", extra={"request_id": request_id(), "code": error.code}, exc_info=error)
    return answer_problem(problem(error), _headers(error))


def _headers(error: DtqError) -> dict[str, str]:
    if isinstance(error, RedisUnavailable):
        return {"Retry-After": str(RETRY_AFTER_S)}
    if error.http_status == 429 or "retry_after" in error.context:
        return {"Retry-After": str(max(1, math.ceil(error.context.get("retry_after", 1))))}
    if isinstance(error, UpgradeRequired):
        return {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    if isinstance(error, KeyMissing | SignInNeeded):
        return {"WWW-Authenticate": "ApiKey"}
    return {}


def on_http_error(error: HTTPException) -> Response:
    """Answer what Flask itself refuses: an unknown path, a wrong method."""
    response = error.get_response()
    if response.status_code < 400:  # a redirect
        return Response(response.get_data(), response.status_code, dict(response.headers))
    status = HTTPStatus(response.status_code)
    said = {
        HTTPStatus.NOT_FOUND: "there is nothing at this path",
        HTTPStatus.METHOD_NOT_ALLOWED: f"this path does not answer to {request.method}",
    }.get(status, status.description or status.phrase)
    headers = {name: value for name, value in response.headers if name in ("Allow", "Retry-After")}
    return answer_problem(_plain(status, status.name, said), headers)


def _on_surprise(error: Exception) -> Response:
    """What nobody foresaw: all of it goes to the log, nothing of it into the answer."""
    log.error("a request failed", extra={"request_id": request_id(), "path": request.path}, exc_info=error)
    said = f"an error of this server; its log has the details under the request id {request_id()}"
    return answer_problem(_plain(HTTPStatus.INTERNAL_SERVER_ERROR, "INTERNAL_ERROR", said))


def _plain(status: HTTPStatus, code: str, message: str) -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": status.phrase,
        "status": status.value,
        "detail": message,
        "code": code,
        "message": message,
        "request_id": request_id(),
    }
