"""Fixtures for all tests: isolation, servers of the test session's own, a misbehaving proxy, waiting."""

from __future__ import annotations

import itertools
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from dtq.keys import Keys
from dtq.redisio import Server
from dtq.settings import load_settings
from tests.support import suites, waiting
from tests.support.dump import namespace_of
from tests.support.invariants import State, lifetime_rules
from tests.support.lifetimes import check_keys
from tests.support.mq import Lab
from tests.support.proxy import FlakyProxy
from tests.support.servers import PROGRAMS, ServerProcess, find_program
from tests.support.topologies import WAYS, Cluster

_numbers = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--topology", choices=sorted(WAYS), help="run the tests that take a server, on one that is run like this"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    topology = config.getoption("topology")
    if topology:
        items[:], others = suites.chosen(topology, items)
        config.hook.pytest_deselected(items=others)


def pytest_configure() -> None:
    """End like Ctrl-C when somebody sends SIGTERM (`timeout` does): fixtures then end their servers."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(autouse=True)
def isolation(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every test starts in an empty directory, without DTQ_* variables and what says how a terminal looks."""
    for name in list(os.environ):
        if name.startswith("DTQ_") or name in ("COLUMNS", "LINES", "NO_COLOR"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path_factory.getbasetemp())
    directory = f"cwd-{next(_numbers)}"
    os.mkdir(directory)
    monkeypatch.chdir(directory)


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """`wait_until(condition, what=..., timeout_s=5)`: the first truthy value, or a failure that names `what`."""
    return waiting.wait_until


@pytest.fixture(scope="session")
def server_process(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], ServerProcess]]:
    """`server_process("redis7")`: the process of a kind of server, one a session and xdist worker, no persistence.

    With --topology: the process that holds the keys there, whatever kind is asked for.
    """
    topology = pytestconfig.getoption("topology")
    if topology:
        with suites.topology(topology, tmp_path_factory.mktemp("topology")) as holder:
            yield lambda name: holder
        return
    made: dict[str, ServerProcess] = {}

    def process(name: str) -> ServerProcess:
        program = find_program(name)
        if program is None:
            pytest.skip(f"this machine has no {name} server")
        if name not in made:
            made[name] = ServerProcess(program).start()
        return made[name]

    yield process
    for one in made.values():
        one.remove()


@pytest.fixture(scope="session")
def valkey(server_process: Callable[[str], ServerProcess]) -> ServerProcess:
    """The process of the embedded server program."""
    return server_process("valkey")


@pytest.fixture(scope="module")
def dashboard(valkey: ServerProcess) -> Iterator[Any]:
    """An application with its dashboard on the embedded server, for the tests of a file."""
    from tests.support.dashboard import running_dashboard  # most tests need no Flask

    with running_dashboard(valkey.url) as made:
        yield made


@pytest.fixture(scope="session", params=PROGRAMS)
def redis_server(request: pytest.FixtureRequest, server_process: Callable[[str], ServerProcess]) -> ServerProcess:
    """The process of each kind of server in turn; a kind that this machine does not have is skipped."""
    return server_process(request.param)


def _reset(server: Server) -> None:
    """Make the settings of a server that tests share what they were: some limit its memory, or let it evict."""
    server.pipeline([("CONFIG", "SET", "maxmemory", 0), ("CONFIG", "SET", "maxmemory-policy", "noeviction")])


def _clean(process: ServerProcess) -> Iterator[Server]:
    server = Server.connect(process.url)
    server.safe_url = process.url  # the passwords of tests are no secrets
    server.call("FLUSHALL")
    _reset(server)
    try:
        yield server
    finally:
        _reset(server)  # not all who come next begin here
        server.close()


@pytest.fixture
def server(valkey: ServerProcess) -> Iterator[Server]:
    """An empty server of the embedded kind. Its address is `server.safe_url`; its process the fixture `valkey`."""
    yield from _clean(valkey)


@pytest.fixture
def any_server(redis_server: ServerProcess) -> Iterator[Server]:
    """An empty server; the test runs once on each kind. Its process is the fixture `redis_server`."""
    yield from _clean(redis_server)


@pytest.fixture
def memory_server() -> Iterator[Server]:
    """An empty fake server in this process."""
    server = Server.connect(f"memory://{uuid.uuid4().hex}")
    yield server
    server.close()


@pytest.fixture
def bounded_keys(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a key in `dtq` on its `server` or `any_server` that no rule of the lifetimes allows."""
    server: Server = request.getfixturevalue("any_server" if "any_server" in request.fixturenames else "server")
    yield
    keys, settings = Keys(namespace_of(server)), load_settings(env_file=None, redis_url="memory://")
    check_keys(server, keys, lifetime_rules(State(server, keys), settings))


class ServerFactory(Protocol):
    """What the fixture `server_factory` is: call it for a started server of the test's own."""

    def __call__(self, program: str = "valkey", **options: Any) -> ServerProcess: ...


@pytest.fixture
def server_factory() -> Iterator[ServerFactory]:
    """`server_factory("valkey", aof=True, tcp=True, options=(...))`: a server to stop, kill, pause and start again.

    The first argument is a name of PROGRAMS or a path, such as `redis_server.program`.
    """
    made: list[ServerProcess] = []

    def make(program: str = "valkey", **options: Any) -> ServerProcess:
        path = find_program(program) if program in PROGRAMS else program
        if path is None:
            pytest.skip(f"this machine has no {program} server")
        process = ServerProcess(path, **options)
        made.append(process)
        return process.start()

    yield make
    for process in made:
        process.remove()


class ProxyFactory(Protocol):
    """What the fixture `flaky_proxy` is: call it with a server's URL for a proxy to that server."""

    def __call__(self, upstream_url: str, *, tcp: bool = False) -> FlakyProxy: ...


@pytest.fixture
def flaky_proxy(pytestconfig: pytest.Config) -> Iterator[ProxyFactory]:
    """`flaky_proxy(server.safe_url)`: a proxy that drops replies, cuts, delays, refuses, hangs and lies on command."""
    if pytestconfig.getoption("topology") in ("tls", "sentinel", "cluster"):
        pytest.skip("a proxy can stand before one server in the clear; here clients would go past it")
    made: list[FlakyProxy] = []

    def make(upstream_url: str, *, tcp: bool = False) -> FlakyProxy:
        proxy = FlakyProxy(upstream_url, tcp=tcp)
        made.append(proxy)
        return proxy

    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture(scope="session")
def cluster(server_process: Callable[[str], ServerProcess]) -> Iterator[Cluster]:
    """A Cluster of three nodes, one a session and xdist worker."""
    topology = Cluster(server_process("valkey").program, size=3)
    try:
        yield topology.start()
    finally:
        topology.remove()


@pytest.fixture(params=[*PROGRAMS, "memory", "cluster"])
def mq(request: pytest.FixtureRequest, server_process: Callable[[str], ServerProcess]) -> Iterator[Lab]:
    """A message queue on an empty server of each kind in turn, in memory, and on a Cluster."""
    if request.param == "memory":
        url = f"memory://{uuid.uuid4().hex}"
    elif request.param == "cluster":
        nodes = request.getfixturevalue("cluster").nodes
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    else:
        url = server_process(request.param).url
    lab = Lab(url)
    lab.server.call("FLUSHALL")
    yield lab
    lab.close()


@pytest.fixture
def mq_valkey(server: Server) -> Iterator[Lab]:
    """A message queue on an empty server of the embedded kind."""
    lab = Lab(server.safe_url)
    yield lab
    lab.close()
