"""A master with its replica and a sentinel, and a cluster, from the same server programs, on loopback ports."""

from __future__ import annotations

import contextlib
import secrets
import socket

from dtq.redisio import Server
from tests.support.servers import ServerProcess
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

    def start(self) -> Cluster:
        first = self.nodes[0].port
        share = -(-16384 // len(self.nodes))
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
