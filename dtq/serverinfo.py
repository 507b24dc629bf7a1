"""What a server says of itself. A managed or fake one may refuse to say: then nothing is known; that is no error."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from dtq.errors import DtqError, RedisUnavailable
from dtq.redisio import CommandError, Server

log = logging.getLogger(__name__)

UNKNOWN = "unknown"
_ADVICE: Mapping[str, str] = {
    "unreachable": "start it, or set DTQ_REDIS_URL to where it is",
    "timeout": "check that it runs and that DTQ_REDIS_URL says where",
    "auth": "check the user and the password in DTQ_REDIS_URL",
}
_LEAP_S = 1.0
_DRIFT = 2e-4
"""By how much two clocks may come apart without a leap, in seconds a second."""


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


def with_advice(error: DtqError, redis_url: str) -> str:
    """Return an error's message for people: when no Redis can be spoken to, also what to check.

    redis_url: the setting; empty for dtq's own server, which nobody has to find.
    """
    advice = _ADVICE.get(error.context.get("reason", "")) if isinstance(error, RedisUnavailable) and redis_url else None
    return f"{error.message}; {advice}" if advice else error.message


class QuietTime:
    """For how long Redis has been well: while it was away, owners could not renew, so no claim has really ended."""

    def __init__(self, server: Server, *, watch_clock: bool = False) -> None:
        """watch_clock: also look whether the clock of Redis leapt: then claims look ended that are not."""
        self._server = server
        self._since: float | None = None
        self._watch_clock = watch_clock
        self._ahead_s: float | None = None
        """Redis's clock minus this process's own, at most, when they were last compared, at `_compared_at`."""
        self._compared_at = 0.0

    def ms(self) -> int:
        """Return it in ms, as far as this process can know. Raises RedisUnavailable."""
        now = time.monotonic()
        if self._since is None or (self._server.last_failure or 0) > self._since:
            # The server may have just been started, with leases that look ended because nobody could renew them.
            # Its seconds are counted by turns of the clock: 1 may be a moment.
            uptime_s = max(0.0, float(server_info(self._server, "server").get("uptime_in_seconds", "86400")) - 1)
            # From this first look after a failure on: who asks rarely fails for the last time long before the end.
            self._since = now - uptime_s if self._server.last_failure is None else now
        if self._watch_clock:
            asked_at = time.monotonic()
            self.note_time(self._server.now(), asked_at)
        return max(0, round((now - self._since) * 1000))

    @property
    def latest(self) -> float:
        """What Redis's clock shows now at most if it has not leapt, in seconds since the epoch; inf: not known."""
        if self._ahead_s is None:
            return float("inf")
        now = time.monotonic()
        return now + self._ahead_s + _most_drift(now - self._compared_at)

    def note_time(self, redis_s: float, asked_at: float) -> None:
        """Take in what Redis's clock showed, seconds since the epoch, at some moment between `asked_at` and now."""
        now = time.monotonic()
        if self._ahead_s is not None:
            leapt_s = redis_s - now - self._ahead_s  # at least: a thread may have waited long for its turn
            if leapt_s > _most_drift(now - self._compared_at):
                log.warning("the clock of Redis leapt by %.0f s: ended leases are not believed for now", leapt_s)
                self._since = now
        self._ahead_s, self._compared_at = redis_s - asked_at, now


def _most_drift(seconds: float) -> float:
    """Return by how much two clocks may have come apart in so many seconds without a leap."""
    return max(_LEAP_S, _DRIFT * seconds)
