"""Who calls, and whether that may be: API keys and their roles (contract, section 14).

Views of the API need nothing of this: `@operation(Operation(need=...))` guards them. Pages use `dtq.web.sessions`. What
takes a key in yet another way (a WebSocket's first message) calls `identify` and `require`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flask import g, request

from dtq.apikeys import ROLES, ApiKey, Role
from dtq.errors import KeyMissing, KeyWrong, RoleTooSmall
from dtq.model import Actor
from dtq.web.engine import Engine, engine
from dtq.web.http import request_id
from dtq.web.origin import refuse_foreign_host, refuse_other_sites

Need = Literal["nothing", "read", "write", "destructive"]
"""What a call does, and so what it may need a key for. "nothing": it is open to all, always."""

_PROTECTED: dict[str, frozenset[Need]] = {
    "destructive": frozenset({"destructive"}),
    "writes": frozenset({"destructive", "write"}),
    "all": frozenset({"destructive", "write", "read"}),
}
_LEAST: dict[Need, Role] = {"nothing": "read", "read": "read", "write": "submit", "destructive": "admin"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose key a request bears."""

    name: str
    role: Role
    mark: str
    """The first half of the key's hash, in hex: another key of the same name has another one."""

    @classmethod
    def of(cls, key: ApiKey) -> Identity:
        """Return the identity that a key gives."""
        return cls(name=key.name, role=key.role, mark=key.digest[:16].hex())

    def may(self, need: Need) -> bool:
        """Whether the role suffices."""
        return ROLES.index(self.role) >= ROLES.index(_LEAST[need])


def allow(need: Need) -> None:
    """Return when the request may go on.

    Raises KeyMissing, KeyWrong, RoleTooSmall, TooManyFailures; CrossSite or ForeignHost for what a browser sends from
    somebody else's page.
    """
    if need == "nothing":
        return
    refuse_foreign_host()
    refuse_other_sites()
    if not needs_key(need):
        return
    offered = request.environ.get("HTTP_X_API_KEY")
    if offered is None:
        raise KeyMissing("this call needs an API key: send it as X-API-Key")
    require(identify(offered), need)


def needs_key(need: Need) -> bool:
    """Whether a call needs a key here: there are keys, and DTQ_PROTECT covers it."""
    return protects(engine(), need)


def protects(shared: Engine, need: Need) -> bool:
    """Whether calls need a key at a server with these settings."""
    return shared.keys.asks and need in _PROTECTED[shared.settings.protect]


def identify(offered: str) -> Identity:
    """Return whose key it is. Raises KeyWrong; TooManyFailures, whatever the key, after many wrong ones."""
    shared, address = engine(), request.remote_addr or ""
    shared.failures.check(address)
    key = shared.keys.whose(offered)
    if key is None:
        shared.failures.failed(address)
        raise KeyWrong("this is not an API key of this server")
    return Identity.of(key)


def require(identity: Identity, need: Need) -> None:
    """Let the request act as `identity`. Raises RoleTooSmall."""
    if not identity.may(need):
        least = _LEAST[need]
        raise RoleTooSmall(
            f"the key {identity.name} has the role {identity.role}; this call needs {least}",
            role=identity.role,
            needed=least,
        )
    g.dtq_identity = identity


def actor(reason: str = "") -> Actor:
    """Return what the audit says of this call: `key:<name>` where a key was asked for, else `api:<address>`."""
    identity: Identity | None = g.get("dtq_identity")
    name = f"key:{identity.name}" if identity is not None else f"api:{request.remote_addr or 'unknown'}"
    return Actor(name, reason, request_id())
