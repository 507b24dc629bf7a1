"""What Redis and the way to it can answer, as dtq's own errors; every translation is here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from redis import exceptions as redis_errors

from dtq.errors import DtqError, RedisFull, RedisUnavailable


class NoScript(DtqError):
    """Redis does not know the script: load it and repeat. It forgets them on a restart and on a failover."""

    code = "NO_SCRIPT"


class CommandError(DtqError):
    """Redis refused the command; repeating it would be refused again. `prefix` is the first word of the answer."""

    code = "REDIS_COMMAND"

    def __init__(self, message: str) -> None:
        """message: the server's answer as it came, such as "NOGROUP No such key ..."."""
        super().__init__(message)
        self.prefix = message.partition(" ")[0]


class Interrupted(DtqError):
    """`BlockingCaller.interrupt` was called: the wait ended early, and waits stay refused until `reset`."""

    code = "INTERRUPTED"

    def __init__(self, message: str = "the wait was interrupted") -> None:
        super().__init__(message)


REASONS: Mapping[str, str] = {
    "LOADING": "loading",
    "READONLY": "readonly",
    "MISCONF": "misconf",
    "MASTERDOWN": "masterdown",
    "NOREPLICAS": "noreplicas",
    "BUSY": "busy",
    "MOVED": "moved",
    "ASK": "moved",
    "TRYAGAIN": "moved",
    "CLUSTERDOWN": "clusterdown",
    "NOAUTH": "auth",
    "WRONGPASS": "auth",
    "NOPERM": "auth",
    "DENIED": "auth",  # protected mode
}
"""First words with which Redis says "not now" or "not you", and the reason that RedisUnavailable carries for each."""

AWAY = frozenset({"unreachable", "timeout", *REASONS.values()}) - {"auth"}
"""The reasons that mean Redis was not there, or not the one that it should be: `Server.last_failure` counts these."""

_MAX_DETAIL_CHARS = 200
_EXPLANATIONS: Mapping[str, str] = {
    "loading": "is still loading its data",
    "readonly": "is a read-only replica",
    "misconf": "refuses writes because it cannot save its data",
    "masterdown": "is a replica that lost its master",
    "noreplicas": "refuses writes because too few replicas are connected",
    "busy": "is busy running a script",
    "moved": "no longer serves this part of the cluster",
    "clusterdown": "belongs to a cluster that is down",
    "auth": "refused the user or the password, or does not let this user run the command",
    "clients": "has no room for another client",
    "timeout": "did not answer in time",
    "pool": "cannot be asked now",
    "closed": "cannot be asked",
}

# Redis 6.2 wraps what a command inside a script answered: "ERR Error running script (...): @user_script: 5: -OOM ..."
_INSIDE_SCRIPT = re.compile(r"Error running script.*?-((?:OOM|NOSCRIPT|" + "|".join(REASONS) + r")\b.*)", re.DOTALL)


def unavailable(reason: str, where: str, detail: str = "") -> RedisUnavailable:
    """Return the error for "Redis at `where` cannot serve". where: an address without a password."""
    words = _EXPLANATIONS.get(reason, "cannot be reached")
    if len(detail) > _MAX_DETAIL_CHARS:
        detail = f"{detail[:_MAX_DETAIL_CHARS]}..."
    return RedisUnavailable(f"Redis at {where} {words}" + (f" ({detail})" if detail else ""), reason=reason)


def translate(error: Exception, where: str) -> DtqError:
    """Return dtq's error for what redis-py raised or parsed.

    where: an address without a password, for the message.
    """
    text = _answer(error)
    if isinstance(error, redis_errors.TimeoutError | TimeoutError):
        return unavailable("timeout", where)
    if "max number of clients" in text:
        return unavailable("clients", where)
    inside = _INSIDE_SCRIPT.search(text)
    if inside:
        text = inside.group(1)
    prefix = text.partition(" ")[0]
    if prefix in REASONS:
        return unavailable(REASONS[prefix], where, text)
    if isinstance(error, redis_errors.AuthenticationError):
        return unavailable("auth", where, text)
    if prefix == "OOM":
        return RedisFull(f"Redis at {where} has reached its maxmemory", reason="maxmemory")
    if prefix == "NOSCRIPT":
        return NoScript(text)
    if isinstance(error, redis_errors.ResponseError):
        return CommandError(text)
    return unavailable("unreachable", where, text)


def raise_inner(reply: Any, where: str) -> None:
    """Raise the first error among the elements of an array: EXEC answers so, and a script that returns one."""
    if reply.__class__ is list:
        for item in reply:
            if isinstance(item, Exception):
                raise translate(item, where)


def _answer(error: Exception) -> str:
    """Return the server's words in full: redis-py cuts the first one off the errors that it knows."""
    text = str(error)
    status = getattr(error, "status_code", None)
    return f"{status} {text}" if status and not text.startswith(f"{status} ") else text
