"""Redis as people run it: TLS, a restricted user, Sentinel, a Cluster, from the programs at hand, on this machine."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from redis.crc import key_slot

from dtq.redisio import Server
from tests.support.servers import ServerProcess, find_program, free_port
from tests.support.tls import make_certificates, tls_options, tls_url
from tests.support.waiting import wait_until


class Sentinels:
    """A master, a replica if wanted, and one sentinel, whose word is enough for a failover."""

    service = "main"

    def __init__(self, program: str, *, replica: bool = False, aof: bool = False) -> None:
        self.master = ServerProcess(program, tcp=True, aof=aof, options=("--repl-diskless-sync-delay", "0"))
        self.sentinel = ServerProcess(program, tcp=True, sentinel=True)
        self.processes = [self.master, self.sentinel]
        if replica:
            of_master = ("--replicaof", f"127.0.0.1 {self.master.port}")
            self.replica = ServerProcess(program, tcp=True, aof=aof, options=of_master)
            self.processes.insert(1, self.replica)

    def start(self) -> Sentinels:
        for process in self.processes:
            process.start()
        with contextlib.closing(Server.connect(self.sentinel.url)) as sentinel:
            if len(self.processes) > 2:
                self._wait_for_sync()
            sentinel.call("SENTINEL", "MONITOR", self.service, "127.0.0.1", self.master.port, 1)
            sentinel.call("SENTINEL", "SET", self.service, "down-after-milliseconds", 300, "failover-timeout", 3000)
            if len(self.processes) > 2:
                wait_until(lambda: sentinel.call("SENTINEL", "REPLICAS", self.service), what="the replica to be seen")
        return self

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{self.service}"

    def remove(self) -> None:
        for process in self.processes:
            process.remove()

    def _wait_for_sync(self) -> None:
        with contextlib.closing(Server.connect(self.replica.url)) as replica:
            wait_until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"), what="the sync")


class Cluster:
    """Nodes that share the slots evenly; each process's Server is in `servers`."""

    def __init__(self, program: str, size: int, *, aof: bool = False) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
        self.nodes = [
            ServerProcess(program, tcp=True, aof=aof, port=_cluster_port(), options=options) for _ in range(size)
        ]
        self.servers = [Server.connect(node.url) for node in self.nodes]
        self._share = -(-16384 // size)

    def start(self) -> Cluster:
        first, share = self.nodes[0].port, self._share
        for number, (node, server) in enumerate(zip(self.nodes, self.servers, strict=True)):
            node.start()
            server.call("CLUSTER", "ADDSLOTS", *range(number * share, min((number + 1) * share, 16384)))
            server.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number:
                server.call("CLUSTER", "MEET", "127.0.0.1", first)
        self.wait_until_ok()
        return self

    def wait_until_ok(self) -> None:
        """Wait until every node that runs says that the cluster is well."""
        for node, server in zip(self.nodes, self.servers, strict=True):
            if node.running:
                wait_until(
                    lambda server=server: b"cluster_state:ok" in server.call("CLUSTER", "INFO"),  # type: ignore[misc]
                    what="the cluster to be well",
                    timeout_s=20,
                )

    @property
    def url(self) -> str:
        """Of the namespace's cluster, by all its nodes."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def holder(self, namespace: bytes = b"{dtq}") -> ServerProcess:
        """The node that was given the slot of a namespace."""
        return self.nodes[key_slot(namespace) // self._share]

    def node_id(self, number: int) -> bytes:
        found: bytes = self.servers[number].call("CLUSTER", "MYID")
        return found

    def remove(self) -> None:
        for server in self.servers:
            server.close()
        for node in self.nodes:
            node.remove()


def _cluster_port() -> int:
    """Return a free port whose bus port, 10 000 higher, is free too."""
    for _ in range(100):
        port = 11_000 + secrets.randbelow(11_000)  # `random` has one seed for all processes of a test run
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            return port
    raise AssertionError("there are no two free ports 10 000 apart")


LEAST_RIGHTS = (
    "resetkeys", "~dtq:*", "resetchannels", "-@all", "+@scripting", "+@stream", "+@hash", "+@sortedset", "+@set",
    "+@list", "+@string", "+exists", "+del", "+unlink", "+expire", "+pexpire", "+pttl", "+persist", "+type", "+ping",
    "+time", "+wait", "+waitaof", "+info", "+hello", "+client|setname", "-script|flush", "-script|kill",
)  # fmt: skip
"""What docs/deployment.md gives to dtq's user."""

ADMINISTRATOR = "admin:0n1y"
"""Who may do everything where dtq's user may not."""


def _program(name: str = "valkey") -> str:
    program = find_program(name)
    if program is None:
        pytest.skip(f"this machine has no {name} server")
    return program


@contextmanager
def unix_socket(directory: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(_program())
    try:
        yield process.start()
    finally:
        process.remove()


@contextmanager
def restricted_user(directory: Path) -> Iterator[ServerProcess]:
    """A user with the rights that the documents name, and a default user that is off."""
    administrator, _, password = ADMINISTRATOR.partition(":")
    users = (
        ("default", "off"),
        ("dtq", "on", ">s3cret", *LEAST_RIGHTS),
        (administrator, "on", f">{password}", "~*", "&*", "+@all"),
    )
    options = [word for user in users for word in ("--user", *user)]
    process = ServerProcess(_program(), tcp=True, options=options)
    try:
        process.start()
        process.url = process.url.replace("redis://", "redis://dtq:s3cret@")
        yield process
    finally:
        process.remove()


@contextmanager
def client_certificates(directory: Path) -> Iterator[ServerProcess]:
    """A server that speaks TLS only, to those who show a certificate."""
    certificates, port = make_certificates(directory), free_port()
    process = ServerProcess(_program("redis7"), options=tls_options(certificates, port))
    try:
        try:
            process.start()
        except AssertionError:
            pytest.skip("the Redis 7 of this machine does not speak TLS")
        process.url = tls_url(certificates, port)
        yield process
    finally:
        process.remove()


@contextmanager
def sentinel(directory: Path) -> Iterator[ServerProcess]:
    """The master of a service that a sentinel names."""
    topology = Sentinels(_program())
    try:
        topology.start().master.url = topology.url
        yield topology.master
    finally:
        topology.remove()


@contextmanager
def cluster(directory: Path) -> Iterator[ServerProcess]:
    """The node of a Cluster of three that holds the namespace."""
    topology = Cluster(_program(), size=3)
    try:
        node = topology.start().holder()
        node.url = topology.url
        yield node
    finally:
        topology.remove()


@contextmanager
def restricted_user_on_cluster(directory: Path) -> Iterator[ServerProcess]:
    """Each node lets dtq's user do what the documents name for a Cluster."""
    with cluster(directory) as node:
        hosts = node.url.partition("://")[2]
        for host in hosts.split(","):
            with contextlib.closing(Server.connect(f"redis://{host}")) as server:
                rights = [word.replace("~dtq:", "~{dtq}:") for word in LEAST_RIGHTS]
                server.call("ACL", "SETUSER", "dtq", "reset", "on", ">s3cret", *rights, "+cluster|slots")
        node.url = f"redis+cluster://dtq:s3cret@{hosts}"
        yield node


Way: TypeAlias = Callable[[Path], contextlib.AbstractContextManager[ServerProcess]]

WAYS: Mapping[str, Way] = {
    "unix": unix_socket,
    "acl": restricted_user,
    "tls": client_certificates,
    "sentinel": sentinel,
    "cluster": cluster,
}
"""By the name that `--topology` knows. Each wants an empty directory, and gives the process that holds dtq's keys; its
`url` is the address by which programs reach it, passwords and all."""
