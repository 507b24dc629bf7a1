"""One namespace of a Redis Cluster: all its keys are in one slot, and its node is found again when it changes."""

from __future__ import annotations

import pytest
from redis.crc import key_slot

from dtq.errors import ConfigurationError, RedisUnavailable
from dtq.redisio import Server
from tests.support.servers import free_port
from tests.support.topologies import Cluster

SLOT = key_slot(b"{dtq}:")


@pytest.fixture(scope="module")
def cluster(valkey):
    topology = Cluster(valkey.program, size=3)
    try:
        yield topology.start()
    finally:
        topology.remove()


@pytest.fixture
def owner(cluster):
    """The number of the node that serves the slot now."""
    for server in cluster.servers:
        server.close()
    cluster.servers = [Server.connect(node.url) for node in cluster.nodes]
    return _owner(cluster)


def _owner(cluster: Cluster) -> int:
    ranges = cluster.servers[0].call("CLUSTER", "SLOTS")
    port = next(master[1] for first, last, master, *_ in ranges if first <= SLOT <= last)
    return next(number for number, node in enumerate(cluster.nodes) if node.port == port)


def connect(*nodes, namespace: str = "{dtq}") -> Server:
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    return Server.connect(f"redis+cluster://{hosts}", namespace=namespace)


def move_slot(cluster: Cluster, source: int, target: int) -> None:
    identity = cluster.node_id(target)
    cluster.servers[target].call("CLUSTER", "SETSLOT", SLOT, "IMPORTING", cluster.node_id(source))
    cluster.servers[source].call("CLUSTER", "SETSLOT", SLOT, "MIGRATING", identity)
    for number in (target, source):
        cluster.servers[number].call("CLUSTER", "SETSLOT", SLOT, "NODE", identity)


def test_commands_scripts_pipelines_and_waits_reach_the_node_of_the_namespace(cluster, owner):
    for seed in cluster.nodes:
        server = connect(seed)
        assert server.kind == "cluster"
        assert server.call("SET", "{dtq}:k", 1) == b"OK"
        sha = server.call("SCRIPT", "LOAD", "return redis.call('INCR', KEYS[1])")
        assert server.call("EVALSHA", sha, 1, "{dtq}:k") == 2
        assert server.pipeline([("EVALSHA", sha, 1, "{dtq}:k"), ("GET", "{dtq}:k"), ("DEL", "{dtq}:k")]) == [3, b"3", 1]
        caller = server.blocking()
        assert caller.call("XREAD", "BLOCK", 10, "STREAMS", "{dtq}:s", "$", block_s=0.01) is None
        caller.close()
        assert str(cluster.nodes[owner].port) in server._pool.route.where
        server.close()


def test_a_slot_that_has_moved_is_followed_after_one_refusal(cluster, owner):
    server, other = connect(*cluster.nodes), (owner + 1) % 3
    caller = server.blocking()
    server.call("DEL", "{dtq}:k")
    caller.call("GET", "{dtq}:k", block_s=0)
    move_slot(cluster, owner, other)
    with pytest.raises(RedisUnavailable) as caught:
        server.call("SET", "{dtq}:k", 1)
    assert caught.value.context["reason"] == "moved"
    assert server.call("SET", "{dtq}:k", 1) == b"OK"
    assert caller.call("GET", "{dtq}:k", block_s=0) == b"1"
    assert server.call("DEL", "{dtq}:k") == 1
    assert str(cluster.nodes[other].port) in server._pool.route.where
    caller.close()
    server.close()


def test_a_slot_that_is_on_the_move_is_unavailable_until_it_has_arrived(cluster, owner):
    server, other = connect(*cluster.nodes), (owner + 1) % 3
    cluster.servers[other].call("CLUSTER", "SETSLOT", SLOT, "IMPORTING", cluster.node_id(owner))
    cluster.servers[owner].call("CLUSTER", "SETSLOT", SLOT, "MIGRATING", cluster.node_id(other))
    for _ in range(2):
        with pytest.raises(RedisUnavailable) as caught:
            server.call("SET", "{dtq}:k", 1)
        assert caught.value.context["reason"] == "moved"
    for number in (owner, other):
        cluster.servers[number].call("CLUSTER", "SETSLOT", SLOT, "STABLE")
    assert server.call("SET", "{dtq}:k", 1) == b"OK"
    assert server.call("DEL", "{dtq}:k") == 1
    server.close()


def test_a_node_that_is_gone_is_replaced_by_its_replica_and_found_through_the_others(cluster, owner, wait_until):
    """The seed of the URL may be the one that died: the nodes that it named are asked too."""
    heir = (owner + 1) % 3
    server = connect(cluster.nodes[owner])
    server.call("DEL", "{dtq}:k")
    cluster.nodes[owner].pause()
    try:
        cluster.servers[heir].call("CLUSTER", "SETSLOT", SLOT, "NODE", cluster.node_id(heir))
        cluster.servers[heir].call("CLUSTER", "BUMPEPOCH")

        def answer() -> object:
            try:
                return server.call("SET", "{dtq}:k", 1)
            except RedisUnavailable:
                return None

        assert wait_until(answer, what="the new node", timeout_s=20) == b"OK"
        assert str(cluster.nodes[heir].port) in server._pool.route.where
        server.call("DEL", "{dtq}:k")
        server.close()
    finally:
        cluster.nodes[owner].resume()
        wait_until(lambda: _owner(cluster) == heir, what="all to agree", timeout_s=20)
        cluster.wait_until_ok()


def test_a_namespace_without_braces_is_a_wrong_setting_on_a_cluster():
    with pytest.raises(ConfigurationError, match="stands in braces"):
        Server.connect("redis+cluster://127.0.0.1:1", namespace="dtq")
    Server.connect("redis+cluster://127.0.0.1:1")


def test_a_single_server_named_as_a_cluster_is_a_wrong_setting(server_factory):
    process = server_factory(tcp=True)
    with pytest.raises(ConfigurationError, match="is no cluster"):
        connect(process).call("PING")


def test_without_any_node_redis_is_unavailable():
    with pytest.raises(RedisUnavailable) as caught:
        Server.connect(f"redis+cluster://u:secret@127.0.0.1:{free_port()}").call("PING")
    assert caught.value.context["reason"] == "unreachable"
    assert "secret" not in str(caught.value)


def test_a_slot_that_nobody_serves_is_unavailable(server_factory):
    process = server_factory(tcp=True, options=("--cluster-enabled", "yes", "--cluster-port", str(free_port())))
    with pytest.raises(RedisUnavailable, match=f"nobody knows slot {SLOT}"):
        connect(process).call("PING")
