"""How scripts are loaded, how they are run by name, and that none of them works without a bound."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from dtq.errors import RedisUnavailable
from dtq.keys import Keys
from dtq.limits import script_limits
from dtq.redisio import CommandError, Server
from dtq.scripts import Scripts
from dtq.serverinfo import server_info
from dtq.settings import load_settings
from dtq.states import Status
from tests.conftest import ProxyFactory, ServerFactory
from tests.support.engine import FAR_MS, Engine, outcome
from tests.support.invariants import check_invariants

S = Status


def scripts_of(server: Server, namespace: str = "dtq", **overrides: Any) -> Scripts:
    settings = load_settings(env_file=None, redis_url="memory://", namespace=namespace, **overrides)
    return Scripts(server, Keys(namespace), script_limits(settings))


# --- loading ----------------------------------------------------------------------------------------------------------


def test_a_script_that_there_is_not_is_no_script(memory_server: Server) -> None:
    with pytest.raises(FileNotFoundError):
        scripts_of(memory_server).script("task_forget_everything")


def test_arguments_are_named_in_any_order_and_neither_more_nor_fewer_of_them(memory_server: Server) -> None:
    scripts = scripts_of(memory_server)
    assert scripts.script("worker_leave").args == ("worker", "gone")
    assert scripts.run("worker_leave", gone="", worker="w1") == 0
    with pytest.raises(TypeError, match="gone"):
        scripts.run("worker_leave", worker="w1")
    with pytest.raises(TypeError, match="limit"):
        scripts.run("worker_leave", worker="w1", gone="", limit=5)
    with pytest.raises(TypeError, match="gone"):
        scripts.run("worker_leave")


def test_a_fragment_that_two_others_need_is_there_once_and_before_both(memory_server: Server) -> None:
    source = scripts_of(memory_server).script("task_commit").source
    for first, then in [("local clock =", "local function event("), ("local function move(", "local function finish(")]:
        assert source.count(first) == source.count(then) == 1
        assert source.index(first) < source.index(then)


def test_keys_and_limits_are_spelled_out_and_comments_cost_nothing(memory_server: Server) -> None:
    source = scripts_of(memory_server, "{other}", max_queue_depth=77).script("task_submit").source
    assert "('{other}:stream:'..queue..':p'..band)" in source
    assert ">= 77" in source
    assert "--[[" not in source
    assert "key." not in source


def test_sources_differ_by_namespace_and_by_settings_and_so_do_their_digests(memory_server: Server) -> None:
    digests = {
        scripts_of(memory_server).script("task_submit").sha,
        scripts_of(memory_server, "other").script("task_submit").sha,
        scripts_of(memory_server, max_queues=5).script("task_submit").sha,
    }
    assert len(digests) == 3
    assert scripts_of(memory_server).script("task_submit").sha in digests


def test_the_line_that_an_error_names_is_the_line_of_the_source(server: Server) -> None:
    engine = Engine(server)
    engine.register("w1")
    scripts = engine.broker.scripts
    with pytest.raises(CommandError) as error:
        scripts.run("task_reclaim", items=[("default",)], limit=1, late_ms=0, quiet_ms="soon")
    named = re.search(r"user_script:(\d+)", str(error.value))
    assert named is not None, error.value
    assert "tonumber(quiet_ms)" in scripts.script("task_reclaim").source.splitlines()[int(named[1]) - 1]


# --- running ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("bounded_keys")
def test_redis_18_scripts_that_the_server_forgot_are_loaded_again_and_no_call_fails(any_server: Server) -> None:
    engine = Engine(any_server)
    claims = []
    for _ in range(20):
        any_server.call("SCRIPT", "FLUSH")
        engine.submit()
        any_server.call("SCRIPT", "FLUSH")
        claims.append(engine.claim_one())
        any_server.call("SCRIPT", "FLUSH")
        assert engine.commit(claims[-1]) is S.SUCCEEDED
    assert engine.queries.counts("default")[S.SUCCEEDED] == 20
    assert [claim.attempt for claim in claims] == [1] * 20
    any_server.call("SCRIPT", "FLUSH")
    assert engine.queries.script_works()


def test_redis_18_scripts_survive_a_server_that_comes_back_without_them(server_factory: ServerFactory) -> None:
    process = server_factory()
    server = Server.connect(process.url)
    engine = Engine(server)
    engine.submit()
    process.kill()
    with pytest.raises(RedisUnavailable):
        engine.submit()
    process.start()
    engine.submit()
    assert engine.queries.counts("default")[S.QUEUED] == 1
    server.close()


@pytest.mark.parametrize(("error", "asked"), [("READONLY You can't write", 2), ("LOADING Redis is loading", 1)])
def test_a_call_is_sent_once_more_only_where_another_connection_may_help(
    server: Server, flaky_proxy: ProxyFactory, error: str, asked: int
) -> None:
    proxy = flaky_proxy(server.safe_url)
    client = Server.connect(proxy.url)
    engine = Engine(client)
    proxy.answer(error, matching=b"EVALSHA")
    with pytest.raises(RedisUnavailable):
        engine.submit()
    assert len([command for command in proxy.commands if b"EVALSHA" in command]) == asked
    client.close()


def test_a_claim_is_never_sent_twice(server: Server, flaky_proxy: ProxyFactory) -> None:
    proxy = flaky_proxy(server.safe_url)
    client = Server.connect(proxy.url)
    engine = Engine(client)
    engine.submit_many(2)
    engine.claim_one()
    proxy.drop_next_reply(b"EVALSHA")
    with pytest.raises(RedisUnavailable):
        engine.claim("w1", 1)
    assert len(engine.pending()) == 2
    client.close()


# --- bounds -----------------------------------------------------------------------------------------------------------

MANY = 20_000
MOST_MS = 50.0


class Slowest:
    """Asks the server how much CPU time the scripts have taken, from one check to the next.

    Not how much time: on a busy machine a script may stand still for longer than it works.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._before_ms = self._cpu_ms()

    def _cpu_ms(self) -> float:
        info = server_info(self._server, "cpu")
        return 1000 * (float(info["used_cpu_user"]) + float(info["used_cpu_sys"]))

    def check(self, what: str, calls: int) -> None:
        """Fail when `calls` scripts of the same size took more than MOST_MS each."""
        now_ms = self._cpu_ms()
        each_ms, self._before_ms = (now_ms - self._before_ms) / calls, now_ms
        assert each_ms <= MOST_MS, f"{what}: {calls} scripts took {each_ms:.1f} ms each"

    def repeat(self, what: str, step: Callable[[], int], most: int) -> int:
        """Call until nothing is left to do, at most `most` times and once more; return the sum."""
        total = 0
        for calls in range(1, most + 2):
            done = step()
            if done == 0:
                self.check(what, calls)
                return total
            total += done
        raise AssertionError(f"{what}: {total} done after {most} scripts, and no end")


@pytest.mark.slow
def test_redis_15_twenty_thousand_due_tasks_are_promoted_and_as_many_orphans_reclaimed_in_bounded_steps(
    server: Server,
) -> None:
    engine = Engine(server, max_queue_depth=MANY + 10, max_scheduled=MANY + 10)
    submission = engine.submission(delay_seconds=600)
    for _ in range(MANY // 1000):
        engine.offer(*[submission] * 1000)
    assert server.call("ZCARD", engine.keys.schedule()) == MANY

    slowest, upkeep = Slowest(server), engine.broker.upkeep
    assert upkeep.promote(limit=10_000, late_ms=-FAR_MS).moved == 100, "never more at once, whoever asks"
    moved = slowest.repeat("promote", lambda: upkeep.promote(late_ms=-FAR_MS).moved, MANY // 100)
    assert moved == MANY - 100

    claimed = slowest.repeat("claim", lambda: len(engine.claim("w1", 100)), MANY // 100 + 1)
    assert claimed == MANY
    engine.end_leases("w1")
    assert upkeep.reclaim(limit=10_000) in (0, 100)
    time.sleep(0.01)
    taken = slowest.repeat("reclaim", upkeep.reclaim, MANY // 100 + 1)
    assert taken >= MANY - 100
    counts = engine.queries.counts("default")
    assert (counts[S.QUEUED], counts[S.RUNNING]) == (MANY, 0)


def test_redis_15_tens_of_thousands_of_dead_letters_and_ended_tasks_go_in_bounded_steps(server: Server) -> None:
    """The limit of dead letters was lowered, and the retention of what has ended."""
    engine = Engine(server, dlq_maxlen=5000)
    for _ in range(30):
        engine.submit_many(100)
        claims = engine.claim("w1", 100)
        for start in range(0, 100, 50):
            engine.broker.commit("w1", [outcome(claim, "dead") for claim in claims[start : start + 50]])
    strict = Engine(server, dlq_maxlen=10, retention_max_tasks=5)
    slowest = Slowest(server)
    removed, calls = 0, 0
    while server.call("XLEN", engine.keys.dead_letter()) > 10 or server.call("ZCARD", engine.keys.finished()) > 5:
        step = strict.broker.upkeep.sweep(limit=200)
        assert step <= 200
        removed += step
        calls += 1
        assert calls < 60
    slowest.check("sweep", calls)
    assert removed == 3000 - 15
    assert engine.queries.counts("default")[S.DEAD_LETTERED] == 10
    check_invariants(server, strict.keys, strict.settings)


@pytest.mark.slow
@pytest.mark.usefixtures("bounded_keys")
def test_redis_15_thousands_of_claims_are_settled_handed_back_and_committed_in_bounded_steps(server: Server) -> None:
    engine = Engine(server)
    engine.submit_many(2000)
    for _ in range(20):
        engine.claim("w1", 100)
    slowest = Slowest(server)
    assert engine.broker.settle("w1", ["default"], []) == 2000
    slowest.check("settle", 20)
    claims = [claim for _ in range(20) for claim in engine.claim("w1", 100)]
    assert engine.broker.hand_back("w1", claims[:1000]) == 1000
    assert len(engine.broker.commit("w1", [outcome(claim, "dead") for claim in claims[1000:]])) == 1000
    slowest.check("hand back and commit", 20)
    check_invariants(server, engine.keys, engine.settings)
