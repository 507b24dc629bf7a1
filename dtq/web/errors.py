"""What only the web layer refuses: keys, media types, queries."""

from __future__ import annotations

from dtq.errors import DtqError


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


class UnsupportedMediaType(DtqError):
    """The body is not declared as JSON."""

    code, http_status = "UNSUPPORTED_MEDIA_TYPE", 415
