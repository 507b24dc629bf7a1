"""Who may call what: one key, in `X-API-Key`, for destructive calls or for more (contract, section 14)."""

from __future__ import annotations

import hmac
from typing import Literal

from flask import request

from dtq.web.engine import engine
from dtq.web.errors import KeyMissing, KeyWrong

Need = Literal["nothing", "read", "write", "destructive"]
"""What a call does, and so what it may need a key for. "nothing": it is open to all, always."""

_PROTECTED: dict[str, frozenset[Need]] = {
    "destructive": frozenset({"destructive"}),
    "writes": frozenset({"destructive", "write"}),
    "all": frozenset({"destructive", "write", "read"}),
}


def allow(need: Need) -> None:
    """Return when the request may go on. Raises KeyMissing or KeyWrong."""
    settings = engine().settings
    if not settings.api_key or need not in _PROTECTED[settings.protect]:
        return
    offered = request.environ.get("HTTP_X_API_KEY")
    if offered is None:
        raise KeyMissing("this call needs an API key: send it as X-API-Key")
    if not hmac.compare_digest(offered.encode(), settings.api_key.encode()):
        raise KeyWrong("this is not the API key of this server")


def actor() -> str:
    """Return what the audit calls the caller."""
    return f"api:{request.remote_addr or 'unknown'}"
