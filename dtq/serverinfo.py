"""What a server says of itself. A managed or fake one may refuse to say: then nothing is known; that is no error."""

from __future__ import annotations

from collections.abc import Mapping

from dtq.redisio import CommandError, Server


def server_info(server: Server, section: str) -> Mapping[str, str]:
    """Return the fields of an INFO section, empty when the server does not tell. Raises RedisUnavailable."""
    try:
        reply: bytes = server.call("INFO", section)
    except CommandError:
        return {}
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
