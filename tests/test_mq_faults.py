"""Faults: killed and stopped processes, cut connections, lost replies, servers that die, forget or are too old."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from dtq.client import Client
from dtq.errors import ConfigurationError, ConfigurationMismatch, RedisFull, RedisUnavailable
from dtq.redisio import Server
from dtq.settings import load_settings
from tests.conftest import ProxyFactory, ServerFactory
from tests.support.mq import QUEUE, Child, Lab, receive_all
from tests.support.proxy import FlakyProxy
from tests.support.servers import ServerProcess
from tests.support.threads import in_thread
from tests.support.topologies import Sentinels
from tests.support.waiting import wait_until

HOLD = """
with queue.subscribe(["a"]) as subscription:
    message = subscription.receive(20)
    print("took", message.key, flush=True)
    time.sleep(float(sys.argv[3]))
    print(message.acknowledge(), message.lost, flush=True)
"""

PUT = """
for number in range(int(sys.argv[3]), int(sys.argv[4])):
    queue.put("a", b"", key=str(number))
    print(number, flush=True)
    time.sleep(0.001)
"""


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    made: list[Child] = []

    def make(*arguments: object) -> Child:
        url, visibility_timeout_s, program, *rest = arguments
        made.append(Child(str(url), float(str(visibility_timeout_s)), str(program), *map(str, rest)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def proxied(mq_valkey: Lab, flaky_proxy: ProxyFactory) -> Iterator[tuple[Lab, FlakyProxy]]:
    """A second client of the same queue, behind a proxy."""
    proxy = flaky_proxy(mq_valkey.url)
    lab = Lab(proxy.url)
    yield lab, proxy
    proxy.stop_answering()
    proxy.unhang()
    lab.client.close()


# --- processes that die -----------------------------------------------------------------------------------------------


def test_mq_13_what_a_killed_process_held_comes_to_another_after_the_timeout(
    mq_valkey: Lab, child: Callable[..., Child]
) -> None:
    queue = mq_valkey.queue(visibility_timeout_s=1)
    queue.put("a", b"", key="k")
    first = child(mq_valkey.url, 1, HOLD, 60)
    assert first.line() == "took k"
    with queue.subscribe(["a"]) as subscription:
        first.kill()
        killed = time.monotonic()
        message = subscription.receive(10)
        assert time.monotonic() - killed < 1 + 1 + 1  # and a slow machine
        assert (message.key, message.deliveries) == ("k", 2)
        message.acknowledge()


def test_mq_21_a_stopped_process_that_goes_on_does_not_take_its_message_back(
    mq_valkey: Lab, child: Callable[..., Child]
) -> None:
    queue = mq_valkey.queue(visibility_timeout_s=0.5)
    queue.put("a", b"", key="k")
    first = child(mq_valkey.url, 0.5, HOLD, 1)
    assert first.line() == "took k"
    first.signal(signal.SIGSTOP)
    with queue.subscribe(["a"]) as subscription:
        message = subscription.receive(10)
        first.signal(signal.SIGCONT)
        assert first.line() == "False True"
        assert not message.lost
        assert message.acknowledge()


def test_names_that_killed_processes_left_are_forgotten(mq_valkey: Lab) -> None:
    queue = mq_valkey.queue(visibility_timeout_s=0.2)
    queue.put_many([("a", b""), ("b", b"")])
    killed, other = mq_valkey.hand(queue, "a", "b"), mq_valkey.hand(queue, "b")
    killed.take()
    long_ago = {mq_valkey.keys.mq_consumers(QUEUE): killed.name}
    for key, name in long_ago.items():
        mq_valkey.server.call("ZADD", key, 1, name)
    other.claim()
    assert killed.name in mq_valkey.consumer_names("a"), "it still owns something there"
    time.sleep(0.25)
    third = mq_valkey.hand(queue, "a", "b")
    third.take().acknowledge()
    third.take().acknowledge()
    mq_valkey.server.call("ZADD", mq_valkey.keys.mq_consumers(QUEUE), 1, killed.name)
    third.claim()
    assert killed.name not in mq_valkey.consumer_names("a")
    assert not mq_valkey.server.call("EXISTS", mq_valkey.keys.mq_consumer(QUEUE, killed.name))


def test_prim_01_what_was_put_is_there_however_often_putting_processes_are_killed(
    mq_valkey: Lab, child: Callable[..., Child]
) -> None:
    """A consumer elsewhere gets all that was accepted from three replicas, one of them killed; no key is left stuck."""
    queue = mq_valkey.queue(visibility_timeout_s=1)
    replicas = [child(mq_valkey.url, 1, PUT, 300 * number, 300 * (number + 1)) for number in range(3)]
    accepted = {replicas[0].line() for _ in range(50)}
    replicas[0].kill()
    accepted |= set(filter(None, iter(replicas[0].line, "")))
    for replica in replicas[1:]:
        accepted |= set(filter(None, iter(replica.line, "")))
    stored = queue.stats().depth
    assert len(accepted) >= 650
    with queue.subscribe(["a"], prefetch=50) as subscription:
        received = {message.key for message in receive_all(subscription, stored)}
    assert accepted <= received
    assert len(received - accepted) <= 1, "stored, but the process died before it could say so"
    assert queue.put("a", b"", key=min(accepted)), "no key is stuck"


# --- connections that break -------------------------------------------------------------------------------------------


def test_mq_17_an_acknowledgement_that_fails_raises_and_may_be_repeated(
    mq_valkey: Lab, proxied: tuple[Lab, FlakyProxy]
) -> None:
    lab, proxy = proxied
    queue = lab.queue(visibility_timeout_s=0.6)
    queue.put_many([("a", b"1", "one"), ("a", b"2", "two")])
    with queue.subscribe(["a"]) as subscription:
        first = subscription.receive(5)
        acknowledging = lab.queue()._store.scripts.script("mq_acknowledge").sha.encode()
        proxy.answer("READONLY no", matching=acknowledging)
        with pytest.raises(RedisUnavailable):
            first.acknowledge()
        assert subscription.receive(5).key == "two"
        proxy.stop_answering()
        again = subscription.receive(5)
        assert (again.key, again.deliveries) == ("one", 2)
        assert first.acknowledge(), "the same consumer owns it"
        assert not again.acknowledge()
    assert mq_valkey.length("a") == 1


@pytest.mark.parametrize("written", [True, False])
def test_mq_17_an_acknowledgement_whose_connection_is_cut_raises_and_may_be_repeated(
    mq_valkey: Lab, proxied: tuple[Lab, FlakyProxy], written: bool
) -> None:
    lab, proxy = proxied
    queue = lab.queue(visibility_timeout_s=0.6)
    queue.put_many([("a", b"", "one"), ("a", b"", "two")])
    with queue.subscribe(["a"]) as subscription:
        first, second = subscription.receive(5), subscription.receive(5)
        if written:  # both times that it is sent only the answer is lost
            acknowledging = queue._store.scripts.script("mq_acknowledge").sha.encode()
            mq_valkey.server.call("SCRIPT", "LOAD", queue._store.scripts.script("mq_acknowledge").source)
            proxy.drop_next_reply(matching=acknowledging, times=2)
        else:
            proxy.refuse()
            proxy.cut()
        with pytest.raises(RedisUnavailable):
            first.acknowledge()
        assert mq_valkey.length("a") == (1 if written else 2)
        proxy.accept()
        if not written:
            again = subscription.receive(10)
            assert (again.key, again.deliveries) == ("one", 2)
        assert first.acknowledge(), "the same consumer owns it, or has done it"
        assert second.acknowledge()
    assert mq_valkey.length("a") == 0


@pytest.mark.parametrize("call", ["put", "put_many", "acknowledge", "release", "resume", "requeue"])
def test_redis_11_a_lost_reply_changes_neither_the_answer_nor_what_is_stored(
    mq_valkey: Lab, proxied: tuple[Lab, FlakyProxy], call: str
) -> None:
    lab, proxy = proxied
    queue = lab.queue(max_deliveries=1)
    hand = mq_valkey.hand(queue, "a", "b")
    if call in ("acknowledge", "release", "requeue"):
        queue.put("a", b"", key="k")
        message = hand.take()
    if call == "requeue":
        message.release()
        assert hand.none()
    if call == "resume":
        queue.pause("a")
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: queue.put("a", b"", key="k"),
        "put_many": lambda: queue.put_many([("a", b"", "k"), ("a", b"", "k"), ("a", b"", None)]),
        "acknowledge": lambda: bool(message.acknowledge()),
        "release": lambda: message.release("b"),
        "resume": lambda: queue.resume("a"),
        "requeue": lambda: queue.dead.requeue("k"),
    }
    script = {"put_many": "mq_put"}.get(call, f"mq_{call}")
    answers: dict[str, object] = {"put_many": [True, False, True], "release": None}
    sha = queue._store.scripts.script(script).sha.encode()
    mq_valkey.server.call("SCRIPT", "LOAD", queue._store.scripts.script(script).source)
    proxy.drop_next_reply(matching=sha)
    assert calls[call]() == answers.get(call, True)
    assert proxy.dropped == 1
    depths = {"put": 1, "put_many": 2, "acknowledge": 0, "release": 1, "resume": 0, "requeue": 1}
    assert queue.stats().depth == depths[call]


def test_a_put_whose_reply_is_lost_is_not_stored_again_when_it_was_consumed_in_between(
    mq_valkey: Lab, proxied: tuple[Lab, FlakyProxy]
) -> None:
    """The repeat must get the first answer, although nothing but the operation's record remembers the message."""
    lab, proxy = proxied
    queue, direct = lab.queue(), mq_valkey.queue()
    hand = mq_valkey.hand(direct)
    scripts = queue._store.scripts
    queue.put("b", b"")
    original = scripts._send
    sent = []

    def send(script: object, values: object) -> object:
        sent.append(script)
        if len(sent) == 2:  # the repeat: by now the message has come and gone
            assert hand.take().acknowledge()
        return original(script, values)  # type: ignore[arg-type]

    scripts._send = send  # type: ignore[method-assign,assignment]
    proxy.drop_next_reply(matching=b"EVALSHA")
    assert queue.put("a", b"", key="k")
    assert len(sent) == 2
    assert mq_valkey.length("a") == 0


def test_an_operation_that_comes_after_a_later_one_of_its_caller_does_nothing(mq_valkey: Lab) -> None:
    """A request that was given up may still be on its way."""
    queue = mq_valkey.queue()
    store = queue._store
    run = store._run
    late: list[dict[str, object]] = []

    def record(name: str, /, **args: object) -> object:
        late.append({"name": name, **args, "items": list(args["items"])})  # type: ignore[call-overload]
        return run(name, **args)

    store._run = record  # type: ignore[method-assign]
    queue.put("a", b"", key="one")
    queue.put("a", b"", key="two")
    assert mq_valkey.hand(queue).take().acknowledge()
    name = str(late[0].pop("name"))
    assert run(name, **late[0])[1] == b""
    assert mq_valkey.length("a") == 1


def test_a_claim_whose_reply_is_lost_costs_no_message_and_no_delivery(
    mq_valkey: Lab, proxied: tuple[Lab, FlakyProxy]
) -> None:
    lab, proxy = proxied
    queue = lab.queue(visibility_timeout_s=60)
    with queue.subscribe(["a"]) as subscription:
        with pytest.raises(TimeoutError):
            subscription.receive(0.1)
        sha = queue._store.scripts.script("mq_claim").sha.encode()
        proxy.drop_next_reply(matching=sha)
        mq_valkey.queue(visibility_timeout_s=60).put("a", b"")
        message = subscription.receive(10)
        assert proxy.dropped == 1
        assert message.deliveries == 1
        assert message.acknowledge()


def test_messages_survive_replies_that_are_lost_all_the_time(mq_valkey: Lab, proxied: tuple[Lab, FlakyProxy]) -> None:
    lab, proxy = proxied
    queue = lab.queue(visibility_timeout_s=1)
    seen: Counter[str] = Counter()
    with queue.subscribe(["a"], prefetch=5) as subscription:
        for number in range(60):
            if number % 3 == 0:
                proxy.drop_next_reply(matching=b"EVALSHA")
            queue.put("a", b"", key=str(number))
            message = subscription.receive(15)
            seen[message.key] += 1
            message.acknowledge()
    assert set(seen) == {str(number) for number in range(60)}
    assert sum(seen.values()) <= 70


# --- servers that go --------------------------------------------------------------------------------------------------


def test_mq_27_consumption_goes_on_after_redis_was_killed_and_no_caller_hears_of_it(
    server_factory: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    process = server_factory(aof=True, options=("--appendfsync", "always"))
    lab = Lab(process.url)
    queue = lab.queue(visibility_timeout_s=1)
    queue.put_many([("a", b"", str(number)) for number in range(4)])
    with caplog.at_level(logging.WARNING), queue.subscribe(["a"]) as subscription:
        subscription.receive(5).acknowledge()
        held = subscription.receive(5)
        thread, outcome = in_thread(lambda: [subscription.receive(30) for _ in range(1)])
        thread.join(5)
        waiting, outcomes = in_thread(subscription.receive, 30)
        process.kill()
        time.sleep(0.3)
        process.start()
        waiting.join(20)
        keys = {held.key, outcome[0][0].key, outcomes[0].key}
        assert keys <= {"0", "1", "2", "3"}
        while "3" not in keys:
            message = subscription.receive(20)
            keys.add(message.key)
            message.acknowledge()
    told = [record.getMessage() for record in caplog.records if "Redis is" in record.getMessage()]
    assert len([line for line in told if "away" in line]) == 1, told
    lab.client.close()


@pytest.mark.parametrize("loss", ["flush", "stream", "wake"])
def test_redis_02_what_is_put_after_everything_was_deleted_is_delivered(mq: Lab, loss: str) -> None:
    queue = mq.queue()
    with queue.subscribe(["a", "b"]) as subscription:
        queue.put("a", b"")
        receive_all(subscription, 1)
        if mq.server.kind == "standalone":
            wait_until(lambda: b"blocked_clients:1\r" in mq.server.call("INFO", "clients"), what="the wait")
        started = time.monotonic()
        if loss == "flush":
            mq.server.call("FLUSHALL")
        else:
            mq.server.call("DEL", mq.stream("a"), *([mq.keys.mq_wake(QUEUE, "a")] if loss == "wake" else []))
        queue.put_many([("a", b"%d" % number) for number in range(3)])
        assert [message.data for message in receive_all(subscription, 3)] == [b"0", b"1", b"2"]
        assert time.monotonic() - started < 3.5
        wait_until(lambda: len(queue.consumers()) == 1, what="the registration")


def test_flushes_under_load_stop_nobody(mq_valkey: Lab) -> None:
    queue = mq_valkey.queue(visibility_timeout_s=1)
    stop = threading.Event()
    received: list[str] = []

    def put() -> None:
        for number in itertools.count():
            if stop.is_set():
                break
            queue.put_many([(topic, b"", f"{topic}-{number}") for topic in ("a", "b")])

    def take() -> None:
        for message in subscription:
            received.append(message.key)
            message.acknowledge()

    with queue.subscribe(["a", "b"], prefetch=10) as subscription:
        threads = [in_thread(put), in_thread(take), in_thread(take)]
        for _ in range(5):
            before = len(received)
            mq_valkey.server.call("FLUSHALL")
            wait_until(lambda before=before: len(received) > before + 50, what="more", timeout_s=15)  # type: ignore[misc]
        stop.set()
        threads[0][0].join(10)
        assert threads[0][1] == [None]
        queue.put("a", b"", key="last")
        wait_until(lambda: "last" in received, what="the last one")
        subscription.close()
        for thread, outcome in threads:
            thread.join(10)
            assert outcome == [None]


def test_messages_that_a_flush_took_are_lost_and_said_to_be(mq: Lab) -> None:
    queue = mq.queue(visibility_timeout_s=0.3)
    queue.put("a", b"")
    with queue.subscribe(["a"]) as subscription:
        message = subscription.receive(5)
        mq.server.call("FLUSHALL")
        wait_until(lambda: message.lost, what="the renewal to find out")
        assert not message.acknowledge()


def test_a_queue_that_was_made_anew_with_another_timeout_is_told_to_who_receives(mq_valkey: Lab) -> None:
    queue = mq_valkey.queue(visibility_timeout_s=5)
    with queue.subscribe(["a"]) as subscription:
        mq_valkey.server.call("HSET", mq_valkey.keys.mq_config(QUEUE), "visibility", 6000)
        mq_valkey.queue(visibility_timeout_s=6).put("a", b"")
        with pytest.raises(ConfigurationMismatch):
            subscription.receive(10)
        mq_valkey.server.call("HSET", mq_valkey.keys.mq_config(QUEUE), "visibility", 5000)
        wait_until(lambda: mq_valkey.pending("a") == 1, what="the claim", timeout_s=10)
        assert subscription.receive(5).acknowledge()


def test_at_maxmemory_acknowledging_goes_on_and_putting_says_why_not(server: Server, valkey: ServerProcess) -> None:
    lab = Lab(server.safe_url)
    queue = lab.queue()
    queue.put_many([("a", b"")] * 2)
    with queue.subscribe(["a"]) as subscription:
        message = subscription.receive(5)
        server.call("CONFIG", "SET", "maxmemory", 1)
        try:
            with pytest.raises(RedisFull):
                queue.put("a", b"")
            assert message.acknowledge()
        finally:
            server.call("CONFIG", "SET", "maxmemory", 0)
        assert receive_all(subscription, 1)
    lab.close()


def test_leaving_while_redis_is_away_says_so_and_goes_on(
    server_factory: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    process = server_factory()
    lab = Lab(process.url)
    queue = lab.queue()
    queue.put("a", b"")
    with queue.subscribe(["a"]) as subscription:
        message = subscription.receive(5)
        process.kill()
    assert message.lost
    assert "could not hand back" in caplog.text
    with pytest.raises(RedisUnavailable), subscription:
        pass
    lab.client.close()


def test_mq_37_too_old_a_server_is_one_clear_error(mq_valkey: Lab, proxied: tuple[Lab, FlakyProxy]) -> None:
    lab, _ = proxied
    call = lab.server.call
    lab.server.call = lambda *args: b"redis_version:6.0.16\r\n" if args[0] == "INFO" else call(*args)  # type: ignore[method-assign,assignment]
    with pytest.raises(ConfigurationError, match=r"6\.2 or newer.*6\.0\.16"):
        lab.queue().put("a", b"")
    with pytest.raises(ConfigurationError), lab.queue().subscribe(["a"]):
        pass


# --- surroundings -----------------------------------------------------------------------------------------------------


@pytest.mark.not_on("acl", "tls", "sentinel", "cluster", because="it makes a user of one plain server")
def test_mq_35_a_user_who_may_touch_nothing_but_the_namespace_is_enough(server: Server) -> None:
    server.call("ACL", "SETUSER", "ann", "on", ">secret", "~dtq:*", "resetchannels", "+@all", "-@admin", "-@dangerous")
    try:
        lab = Lab(server.safe_url.replace("unix://", "unix://ann:secret@"))
        with pytest.raises(RedisUnavailable):
            lab.server.call("SET", "elsewhere", 1)
        queue = lab.queue(max_deliveries=2, tombstone_ttl_s=60)
        queue.put("a", b"1", max_size=5)
        queue.put("a", b"2", delay_s=0.1)
        queue.pause("b")
        queue.resume("b")
        with queue.subscribe(["a", "b"]) as subscription:
            assert [message.data for message in receive_all(subscription, 2)] == [b"1", b"2"]
            queue.put("b", b"3")
            subscription.receive(5).release()
            subscription.receive(5).release()
            wait_until(queue.dead.list, what="the dead message")
        assert queue.stats().depth == 1
        assert queue.dead.purge() == 1
        lab.client.close()
    finally:
        server.call("ACL", "DELUSER", "ann")


def test_a_subscription_goes_on_with_the_master_that_sentinel_names_after_a_failover(valkey: ServerProcess) -> None:
    topology = Sentinels(valkey.program, replica=True)
    try:
        topology.start()
        lab = Lab(topology.url)
        queue = lab.queue(visibility_timeout_s=1)
        queue.put("a", b"", key="before")
        with queue.subscribe(["a"]) as subscription:
            assert receive_all(subscription, 1)[0].key == "before"
            queue.put("a", b"", key="waiting")
            assert lab.server.call("WAIT", 1, 5000) == 1
            topology.master.kill()
            keys = {subscription.receive(30).key}

            def put() -> bool:
                try:
                    return queue.put("a", b"", key="after") or True
                except RedisUnavailable:
                    return False

            wait_until(put, what="the new master", timeout_s=20)
            while "after" not in keys:
                with subscription.receive(20) as message:
                    keys.add(message.key)
        lab.client.close()
    finally:
        topology.remove()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_to_make_its_own(mq_valkey: Lab) -> None:
    queue = mq_valkey.queue()
    queue.put("a", b"")
    with queue.subscribe(["a"]) as subscription:
        message = subscription.receive(5)
        pid = os.fork()
        if pid == 0:  # the child answers with its exit status: which of the calls were refused
            refused = 0
            for bit, call in enumerate(
                (
                    lambda: queue.put("a", b""),
                    lambda: subscription.receive(0),
                    message.acknowledge,
                    lambda: subscription.acknowledge_later(message),
                    message.release,
                    subscription.flush,
                )
            ):
                try:
                    call()
                except RuntimeError:
                    refused |= 1 << bit
            subscription.__exit__(None, None, None)  # hands nothing of the parent's back
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0b111111
        assert message.acknowledge()


def test_mq_33_a_subscription_leaves_nothing_behind_however_often(mq_valkey: Lab) -> None:
    queue = mq_valkey.queue()
    queue.put("a", b"")
    threads, connections = len(os.listdir("/proc/self/task")), 0
    for number in range(200):
        with queue.subscribe(["a"]) as subscription:
            if number % 20 == 0:
                subscription.receive(5)
        connections = max(connections, len(mq_valkey.server.call("CLIENT", "LIST").splitlines()))
    assert mq_valkey.consumer_names("a") == []
    assert queue.consumers() == []
    assert len(os.listdir("/proc/self/task")) <= threads + 1
    assert connections < 12


@pytest.mark.long
def test_mq_33_a_thousand_subscriptions_leave_nothing_behind(mq: Lab) -> None:
    queue = mq.queue()
    queue.put("a", b"")
    for _ in range(1000):
        with queue.subscribe(["a"]):
            pass
    assert mq.consumer_names("a") == []
    assert queue.consumers() == []


def test_the_client_makes_queues_without_asking_redis() -> None:
    with Client(settings=load_settings(env_file=None, redis_url="redis://127.0.0.1:1")) as client:
        queue = client.queue("commands")
        queue.subscribe(["a"])
        with pytest.raises(RedisUnavailable):
            queue.put("a", b"")
