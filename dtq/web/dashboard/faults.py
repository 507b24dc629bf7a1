"""Errors as pages: what happened, and what to do next."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, redirect, request
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as WerkzeugResponse

from dtq.errors import DtqError, RedisUnavailable
from dtq.web import problem
from dtq.web.dashboard.action import sentence
from dtq.web.dashboard.page import bp, html, prepare
from dtq.web.dashboard.words import link
from dtq.web.errors import SignInNeeded
from dtq.web.http import request_id

log = logging.getLogger(__name__)


def register(app: Flask) -> None:
    """Answer with a page when a browser asks for what is not there."""
    for status in (404, 405):
        app.register_error_handler(status, _on_http_error)


@bp.errorhandler(SignInNeeded)
def _to_sign_in(error: SignInNeeded) -> WerkzeugResponse:
    target = f"/sign-in{link(to=request.full_path.rstrip('?') if request.method == 'GET' else '/')}"
    if "HX-Request" in request.headers:  # a form in the middle of a page would help nobody
        return Response(status=401, headers={"HX-Redirect": target})
    return redirect(target, 303)


@bp.errorhandler(DtqError)
def _on_dtq_error(error: DtqError) -> Response:
    if isinstance(error, RedisUnavailable):
        problem.log_away(error)
        return _page(503, "Redis is away", sentence(error.message), away=True)
    if error.http_status >= 500:
        log.error("a page failed", extra={"request_id": request_id(), "code": error.code}, exc_info=error)
    return _page(error.http_status, _title(error), sentence(error.message))


def _title(error: DtqError) -> str:
    if error.http_status == HTTPStatus.NOT_FOUND:  # TASK_NOT_FOUND
        return error.code.replace("_", " ").capitalize()
    return "Not allowed" if error.http_status == HTTPStatus.FORBIDDEN else HTTPStatus(error.http_status).phrase


def _on_http_error(error: HTTPException) -> Any:
    if "text/html" not in request.headers.get("Accept", "") or request.path.startswith("/api/"):
        return problem.on_http_error(error)
    if error.code == HTTPStatus.NOT_FOUND:
        return _page(404, "There is no such page", "Perhaps the address has a slip, or what it led to is gone.")
    said = "This address takes what a form sends." if error.code == HTTPStatus.METHOD_NOT_ALLOWED else error.description
    return _page(error.code or 400, error.name, said or "")


@bp.errorhandler(Exception)
def _on_surprise(error: Exception) -> Any:
    if isinstance(error, HTTPException):
        return _on_http_error(error)
    log.error("a page failed", extra={"request_id": request_id(), "path": request.path}, exc_info=error)
    said = f"That is an error of this server. Its log has the details under the request id {request_id()}."
    return _page(500, "Something went wrong", said)


def _page(status: int, title: str, said: str, *, away: bool = False) -> Response:
    prepare()
    response = html("error.html", status, title=title, said=said, status=status, away=away)
    if away:
        response.headers["Retry-After"] = str(problem.RETRY_AFTER_S)
    return response
