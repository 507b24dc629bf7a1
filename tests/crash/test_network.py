"""A network that drops, delays, cuts, half-closes and repeats: nothing is lost by it, nothing runs twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from dtq.redisio import Server
from tests.conftest import ProxyFactory
from tests.crash.conftest import Field, FieldFactory
from tests.support.proxy import FlakyProxy

SOON_S, MARGIN_S = 5.0, 5.0


def cut(proxy: FlakyProxy) -> None:
    proxy.cut()


def half_close(proxy: FlakyProxy) -> None:
    proxy.half_close()


def drop(proxy: FlakyProxy) -> None:
    proxy.drop_next_reply(b"EVALSHA", times=2)


def lose_a_token(proxy: FlakyProxy) -> None:
    proxy.drop_next_reply(b"XREADGROUP")


def double(proxy: FlakyProxy) -> None:
    proxy.double_next(b"EVALSHA", times=20)


def delay(proxy: FlakyProxy) -> None:
    proxy.delay_s = 0.1


def delay_beyond_patience(proxy: FlakyProxy) -> None:
    proxy.delay_s = 2.0


def hang(proxy: FlakyProxy) -> None:
    proxy.hang()


HARMS: list[Callable[[FlakyProxy], None]] = [
    cut, half_close, drop, lose_a_token, double, delay, delay_beyond_patience, hang,
]  # fmt: skip


@pytest.fixture
def proxy(server: Server, flaky_proxy: ProxyFactory) -> Iterator[FlakyProxy]:
    made = flaky_proxy(server.safe_url)
    yield made
    made.delay_s = 0
    made.unhang()


def _mixed(field: Field, number: int) -> list[str]:
    kinds = [("quick", {}), ("nap", {"seconds": 0.05}), ("fails.once", {})]
    return [field.submit(*kinds[n % 3], delay_seconds=0.3 if n % 5 == 0 else 0) for n in range(number)]


@pytest.mark.slow
def test_redis_11_after_any_misbehaviour_of_the_network_all_is_done_once_and_soon(
    server: Server, proxy: FlakyProxy, make_field: FieldFactory
) -> None:
    """Two workers see Redis through it. Their leases are long: nobody waits for one to end."""
    field = make_field(proxy.url, client_url=server.safe_url, visibility_timeout_s=60)
    workers = [field.spawn(name) for name in ("one", "two")]
    for harm in HARMS:
        ids = _mixed(field, 10)
        for _ in range(3):
            harm(proxy)
            ids += _mixed(field, 10)
            time.sleep(0.15)
        proxy.delay_s = 0
        proxy.unhang()
        ended_at = time.monotonic()
        ids += _mixed(field, 5)
        done = [field.done(one) for one in ids]
        took_s = time.monotonic() - ended_at
        assert took_s < SOON_S + MARGIN_S, f"{harm.__name__}: {took_s} s"
        assert {task.crashes for task in done} == {0}, harm.__name__
        runs = field.runs()
        counted = {one: len(runs[one]) for one in ids}
        assert counted == {task.task_id: 1 + task.failures for task in done}, f"{harm.__name__}: a start too many"
    assert proxy.dropped > 0
    assert proxy.doubled >= 20
    for worker in workers:
        said = [line for line in worker.lines() if "next attempt in" not in line]
        assert len(said) <= 8, "\n".join(said)
        assert worker.lines("ERROR") == []
        assert "Traceback" not in worker.log
