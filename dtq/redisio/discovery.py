"""The way to a server that others name: Sentinel's master, the Cluster's node for one slot."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from redis.connection import ConnectionInterface
from redis.crc import key_slot
from redis.exceptions import MovedError, RedisError

from dtq.errors import ConfigurationError, DtqError
from dtq.redisio.errors import CommandError, translate, unavailable
from dtq.redisio.routes import ask, make_connection
from dtq.redisio.urls import Host, Kind, Target, address

DEFAULT_CLUSTER_NAMESPACE = "{dtq}"


class _DiscoveringRoute:
    """Asks for the address once, keeps it until a connection is lost, then asks again."""

    kind: ClassVar[Kind]
    _what: str

    def __init__(self, target: Target, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._host: Host | None = None
        self._asked: list[Host] = list(target.hosts)
        """Whom to ask, the one that knew last first."""
        self._asking = threading.Lock()

    @property
    def where(self) -> str:
        """The address, for messages: that of the server once it is known."""
        host = self._host
        known = address(host) if host else "an unknown address"
        return f"{known} ({self._what} at {', '.join(map(address, self._target.hosts))})"

    def connection(self) -> ConnectionInterface:
        """Return a new connection, asking for the address when it is not known.

        Raises RedisUnavailable when nobody that can be asked knows it, within the time limit of one call.
        """
        host = self._host
        if host is None:
            host = self._find()
        return make_connection(self._target, host, self._timeout_s)

    def lost(self, error: Exception) -> None:
        """Ask again for the next connection."""
        self._host = None

    def _find(self) -> Host:
        deadline = time.monotonic() + self._timeout_s
        if not self._asking.acquire(timeout=self._timeout_s):
            raise unavailable("timeout", self.where, "another thread is asking")
        try:
            if self._host is None:
                self._host = self._ask_around(deadline)
            return self._host
        finally:
            self._asking.release()

    def _ask_around(self, deadline: float) -> Host:
        failure: DtqError | None = None
        for number, host in enumerate(list(self._asked)):
            share_s = max((deadline - time.monotonic()) / (len(self._asked) - number), 0.001)
            try:
                found = self._ask_one(host, share_s)
            except CommandError as error:
                raise ConfigurationError(f"{address(host)} is no {self.kind} as the Redis URL says: {error}") from error
            except DtqError as error:
                failure = failure or error
            else:
                if found is not None:
                    self._asked.remove(host)
                    self._asked.insert(0, host)
                    return found
        raise failure or unavailable("unreachable", self.where, f"nobody knows {self._what}")

    def _ask_one(self, host: Host, timeout_s: float) -> Host | None:
        raise NotImplementedError

    def _question(self, target: Target, host: Host, timeout_s: float, *command: str) -> Any:
        try:
            return ask(make_connection(target, host, timeout_s), *command)
        except (RedisError, OSError) as error:
            raise translate(error, address(host)) from error


class SentinelRoute(_DiscoveringRoute):
    """The master of a service, as its sentinels name it."""

    kind = "sentinel"

    def __init__(self, target: Target, timeout_s: float) -> None:
        super().__init__(target, timeout_s)
        self._what = f"master {target.service!r} of the sentinels"
        self._sentinel = dataclasses.replace(
            target, db=0, username=target.sentinel_username, password=target.sentinel_password, client_name=None
        )

    def _ask_one(self, host: Host, timeout_s: float) -> Host | None:
        answer = self._question(
            self._sentinel, host, timeout_s, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._target.service
        )
        return (answer[0].decode(), int(answer[1])) if answer else None


class ClusterRoute(_DiscoveringRoute):
    """The node that serves the slot of one namespace: all its keys are there, so one node is all that is needed."""

    kind = "cluster"

    def __init__(self, target: Target, timeout_s: float, namespace: str) -> None:
        super().__init__(target, timeout_s)
        namespace = namespace or DEFAULT_CLUSTER_NAMESPACE
        if not (namespace.startswith("{") and namespace.endswith("}")):
            raise ConfigurationError(
                f"DTQ_NAMESPACE={namespace!r}: on a Redis Cluster the namespace stands in braces, as in {{dtq}}, "
                "so that all its keys are in one slot"
            )
        self._slot: int = key_slot(f"{namespace}:".encode())
        self._what = f"slot {self._slot} of the cluster"

    def lost(self, error: Exception) -> None:
        """Take the new address from the answer that names it, else ask again."""
        host = self._host
        self._host = None
        if isinstance(error, MovedError) and error.slot_id == self._slot and host:
            self._host = (error.host or host[0], error.port)
            self._remember([self._host])

    def _ask_one(self, host: Host, timeout_s: float) -> Host | None:
        ranges = self._question(self._target, host, timeout_s, "CLUSTER", "SLOTS")
        masters = {(first, last): _node(master, host) for first, last, master, *_ in ranges}
        self._remember(list(masters.values()))
        return next((node for (first, last), node in masters.items() if first <= self._slot <= last), None)

    def _remember(self, nodes: Sequence[Host]) -> None:
        """Ask these too the next time, besides those of the URL: seeds may go, and nodes come."""
        known = [*self._target.hosts, *nodes]
        self._asked = list(dict.fromkeys([*(host for host in self._asked if host in known), *known]))


def _node(entry: Sequence[Any], asked: Host) -> Host:
    """Read a node of CLUSTER SLOTS; one that does not know its own address is at the one where it was asked."""
    name, port = entry[0], entry[1]
    return (name.decode() if name else asked[0]), int(port)
