"""The suites on a Redis as people run it: `pytest --topology acl` gives every test that takes a server such a one.

What a topology cannot do is skipped with a reason; tests that take no server, or make their own, are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dtq.redisio import Server
from tests.support import PROJECT
from tests.support.servers import ServerProcess
from tests.support.topologies import ADMINISTRATOR, WAYS

TESTS = str(PROJECT / "tests")

OWN_SERVERS = ("test_redisio_", "test_support", "test_embedded", "test_durability", "test_topologies")
"""How the names of files begin whose subject is the connection, or the server itself: they choose what they run on."""


def chosen(name: str, items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Part the tests into those that a topology concerns, and the others. A test of each kind of server runs once."""
    concerned: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        takes = "server_process" in getattr(item, "fixturenames", ()) and not item.path.name.startswith(OWN_SERVERS)
        (concerned if takes and _kind(item) == "valkey" else others).append(item)
        for mark in item.iter_markers("not_on"):
            if name in mark.args:
                item.add_marker(pytest.mark.skip(reason=f"on {name}: {mark.kwargs['because']}"))
    return concerned, others


def _kind(item: pytest.Item) -> str:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    kinds = [value for name, value in parameters.items() if name in ("redis_server", "mq")]
    return str(kinds[0]) if kinds else "valkey"


@contextmanager
def topology(name: str, directory: Path) -> Iterator[ServerProcess]:
    """The process that holds the keys; `url` is how programs reach it."""
    with WAYS[name](directory) as process:
        if name == "acl":
            with _tests_ask_as_administrator(process):
                yield process
        else:
            yield process


@contextmanager
def _tests_ask_as_administrator(process: ServerProcess) -> Iterator[None]:
    """What dtq's own modules send goes as the restricted user; what a test itself asks may be more than that."""
    with pytest.MonkeyPatch.context() as patch:
        admin = Server.connect(process.url.replace("dtq:s3cret", ADMINISTRATOR), max_connections=64)
        port = f":{process.port}"

        def told_apart(original: Callable[..., Any]) -> Callable[..., Any]:
            def ask(server: Server, *words: Any) -> Any:
                caller = sys._getframe(1).f_code.co_filename
                by_test = caller.startswith(TESTS) and server.safe_url.endswith(port)
                return original(admin if by_test else server, *words)

            return ask

        patch.setattr(Server, "call", told_apart(Server.call))
        patch.setattr(Server, "pipeline", told_apart(Server.pipeline))
        yield
        admin.close()
