"""What a server says of itself. A managed or fake one may refuse to say: then nothing is known; that is no error."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dtq.errors import RedisUnavailable
from dtq.redisio import CommandError, Server

log = logging.getLogger(__name__)

UNKNOWN = "unknown"


def server_info(server: Server, section: str) -> Mapping[str, str]:
    """Return the fields of an INFO section, empty when the server does not tell. Raises RedisUnavailable."""
    try:
        reply: bytes = server.call("INFO", section)
    except CommandError:
        return {}
    except RedisUnavailable as error:
        if error.context.get("reason") != "auth":  # this user may not ask; a wrong password is met by what comes next
            raise
        return {}
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def eviction_policy(server: Server) -> str:
    """Return maxmemory-policy, or "unknown" where the server does not tell. Raises RedisUnavailable."""
    return server_info(server, "memory").get("maxmemory_policy") or UNKNOWN


def loses_keys(policy: str) -> bool:
    """Whether a server of this maxmemory-policy throws keys away when its memory is full."""
    return policy not in ("noeviction", UNKNOWN)


def warn_of_eviction(server: Server) -> None:
    """Say once, at a start, that tasks can be lost here. Says nothing when Redis is away: others say that."""
    try:
        policy = eviction_policy(server)
    except RedisUnavailable:
        return
    if loses_keys(policy):
        log.warning(
            "Redis evicts keys when its memory is full (maxmemory-policy %s): tasks can be lost; set noeviction",
            policy,
        )
