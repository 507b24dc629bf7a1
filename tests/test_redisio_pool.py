"""The pool of connections: threads, limits, exceptions from outside, forks."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from dtq.errors import RedisUnavailable
from dtq.redisio import Server
from tests.support import PROJECT


def test_many_threads_share_a_connection_and_each_gets_its_own_replies(server):
    shared = Server.connect(server.safe_url, max_connections=1, timeout_s=30)
    wrong: list[object] = []

    def use(name: str) -> None:
        for number in range(100):
            text = f"{name}-{number}".encode()
            reply = shared.call("ECHO", text)
            if reply != text:
                wrong.append((text, reply))

    run_threads([threading.Thread(target=use, args=(f"t{n}",)) for n in range(8)])
    assert wrong == []
    assert shared._pool._links == 1
    shared.close()


def run_threads(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_call_waits_for_a_free_connection_and_gives_up_after_the_time_limit(server):
    small = Server.connect(server.safe_url, max_connections=1, timeout_s=0.2)
    link = small._pool.take()
    started = time.monotonic()
    with pytest.raises(RedisUnavailable, match="all connections are busy") as caught:
        small.call("PING")
    assert 0.15 < time.monotonic() - started < 1
    assert caught.value.context["reason"] == "pool"
    assert small.last_failure is None
    threading.Timer(0.05, lambda: small._pool.give_back(link)).start()
    assert small.call("PING") == b"PONG"
    small.close()


def test_a_closed_server_refuses_calls_and_closes_its_connections(server, wait_until):
    small = Server.connect(server.safe_url, max_connections=1, timeout_s=10)
    link = small._pool.take()
    errors: list[RedisUnavailable] = []

    def use() -> None:
        try:
            small.call("PING")
        except RedisUnavailable as error:
            errors.append(error)

    waiter = threading.Thread(target=use)
    waiter.start()
    wait_until(lambda: small._pool._waiting, what="a thread that waits for the connection")
    small.close()
    waiter.join(5)
    assert errors[0].context["reason"] == "closed"
    small._pool.give_back(link)
    del link
    assert small._pool._links == 0
    with pytest.raises(RedisUnavailable, match="closed"):
        small.call("PING")
    small.close()


EXCEPTIONS_FROM_OUTSIDE = """
import ctypes, sys, threading, time
from dtq.errors import RedisUnavailable
from dtq.redisio import Server

class OutOfTheBlue(Exception):
    pass

shared = Server.connect(sys.argv[1], max_connections=2, timeout_s=5)
stop = threading.Event()
wrong, hits, number = [], 0, 0

def use():
    global hits, number
    while not stop.is_set():
        try:
            number += 1
            text = b"%d" % number
            reply = shared.call("ECHO", text)
            if reply != text:
                wrong.append((text, reply))
        except OutOfTheBlue:
            hits += 1
        except RedisUnavailable as error:
            wrong.append(error)

def survive():
    while not stop.is_set():
        try:
            use()
        except OutOfTheBlue:
            continue

thread = threading.Thread(target=survive)
thread.start()
for _ in range(300):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(OutOfTheBlue))
    time.sleep(0.001)
stop.set()
thread.join(10)
assert not thread.is_alive()
assert not wrong, wrong[:3]
assert hits > 30, hits
links = [shared._pool.take(), shared._pool.take()]  # both places are there
print("fine")
"""


def test_exceptions_raised_in_a_thread_at_any_moment_mix_up_no_replies_and_cost_no_connections(server):
    """The timeout of a task is raised in its thread wherever that is, also between a command and its reply."""
    done = subprocess.run(
        [sys.executable, "-c", EXCEPTIONS_FROM_OUTSIDE, server.safe_url],
        cwd=PROJECT,
        timeout=30,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "fine\n", done.stderr


FORK = """
import os, sys, threading
from dtq.redisio import Server

server = Server.connect(sys.argv[1], max_connections=2)
blocking = server.blocking()
client_id = server.call("CLIENT", "ID")
blocking_id = blocking.call("CLIENT", "ID", block_s=1)
server._pool._changed.acquire()  # as another thread might hold it at the moment of the fork
blocking._lock.acquire()
child = os.fork()
if child == 0:
    blocking.interrupt()  # must not reach the parent's connection
    blocking.reset()
    others = {server.call("CLIENT", "ID"), blocking.call("CLIENT", "ID", block_s=1)}
    sys.exit(0 if others.isdisjoint({client_id, blocking_id}) and len(others) == 2 else 1)
server._pool._changed.release()
blocking._lock.release()
status = os.waitpid(child, 0)[1]
assert server.call("CLIENT", "ID") == client_id, "the parent lost its connection"
assert blocking.call("CLIENT", "ID", block_s=1) == blocking_id, "the parent lost its blocking connection"
blocking.close()
server.close()
sys.exit(status)
"""


def test_after_a_fork_parent_and_child_use_connections_of_their_own(server):
    done = subprocess.run([sys.executable, "-c", FORK, server.safe_url], cwd=PROJECT, timeout=30, check=False)
    assert done.returncode == 0
