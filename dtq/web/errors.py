"""What only the web layer refuses: keys, media types, queries."""

from __future__ import annotations

from dtq.errors import DtqError


class InvalidRequest(DtqError):
    """The query, a header or the body of the request breaks a rule; `context["errors"]` names what."""

    code, http_status = "INVALID_REQUEST", 400


class KeyMissing(DtqError):
    """The call needs an API key and has none."""

    code, http_status = "API_KEY_MISSING", 401


class KeyWrong(DtqError):
    """The API key is not the one of this server."""

    code, http_status = "API_KEY_WRONG", 403


class QueueNotFound(DtqError):
    """No queue can have this name."""

    code, http_status = "QUEUE_NOT_FOUND", 404


class UnsupportedMediaType(DtqError):
    """The body is not declared as JSON."""

    code, http_status = "UNSUPPORTED_MEDIA_TYPE", 415
