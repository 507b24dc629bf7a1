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
    """The API key is none of this server's."""

    code, http_status = "API_KEY_WRONG", 403


class RoleTooSmall(DtqError):
    """The API key is right, and its role does not allow the call; `context["needed"]` says which one does."""

    code, http_status = "ROLE_TOO_SMALL", 403


class TooManyFailures(DtqError):
    """Too many wrong keys came from this address; `context["retry_after"]` says when to try again (s)."""

    code, http_status = "TOO_MANY_FAILURES", 429


class SignInNeeded(DtqError):
    """The page needs somebody who signed in with a key."""

    code, http_status = "SIGN_IN_NEEDED", 401


class CrossSite(DtqError):
    """A browser sent this from a page of another site, or without the token of the form."""

    code, http_status = "CROSS_SITE", 403


class ForeignHost(DtqError):
    """The Host header has a name that this server does not go by."""

    code, http_status = "FOREIGN_HOST", 403


class TooManySockets(DtqError):
    """This process holds as many WebSockets as it may; `context["retry_after"]` says when to try again (s)."""

    code, http_status = "TOO_MANY_WEBSOCKETS", 503


class TooManySocketsOfAddress(DtqError):
    """The address of the client has as many WebSockets of this process as it may."""

    code, http_status = "TOO_MANY_WEBSOCKETS", 429


class UpgradeRequired(DtqError):
    """The path speaks WebSocket (version 13) only, or this web server cannot."""

    code, http_status = "UPGRADE_REQUIRED", 426


class QueueNotFound(DtqError):
    """No queue can have this name."""

    code, http_status = "QUEUE_NOT_FOUND", 404


class UnsupportedMediaType(DtqError):
    """The body is not declared as JSON."""

    code, http_status = "UNSUPPORTED_MEDIA_TYPE", 415
