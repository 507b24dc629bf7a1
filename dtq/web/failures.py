"""How often an address may offer a key that is none."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict

from dtq.errors import TooManyFailures

BURST = 10
"""Wrong keys that an address may send at once."""

RECOVERY_S = 2.0
"""Then one more for each of these seconds."""

MAX_ADDRESSES = 10_000
"""Remembered; the one that failed longest ago is forgotten for a new one."""


class FailureLimit:
    """Counts wrong keys by address, in this process. Safe to use from any thread."""

    def __init__(self, burst: int = BURST, recovery_s: float = RECOVERY_S, max_addresses: int = MAX_ADDRESSES) -> None:
        self._span_s = burst * recovery_s
        self._recovery_s = recovery_s
        self._max = max_addresses
        self._free_at: OrderedDict[str, float] = OrderedDict()  # when an address has recovered from all its failures
        self._lock = threading.Lock()

    def check(self, address: str) -> None:
        """Return when the address may offer a key. Raises TooManyFailures, also for the right key, until it may."""
        free_at = self._free_at.get(_network(address))
        if free_at is None:
            return
        wait_s = free_at - time.monotonic() - (self._span_s - self._recovery_s)
        if wait_s > 0:
            raise TooManyFailures("too many wrong API keys came from this address; wait", retry_after=round(wait_s, 1))

    def failed(self, address: str) -> None:
        """Note that the address offered a key that is none."""
        network, now = _network(address), time.monotonic()
        with self._lock:
            free_at = max(now, self._free_at.pop(network, now))
            self._free_at[network] = min(free_at + self._recovery_s, now + self._span_s)
            if len(self._free_at) > self._max:
                self._free_at.popitem(last=False)

    def __len__(self) -> int:
        """How many addresses are remembered."""
        return len(self._free_at)


def _network(address: str) -> str:
    """An IPv6 client has a whole /64 to itself."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address, 64), strict=False))
    except ValueError:
        return address
