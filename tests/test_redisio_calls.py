"""Commands and replies on real servers: the shapes, the errors, several commands at once."""

from __future__ import annotations

import contextlib
import enum
import threading

import hiredis
import pytest

from dtq.errors import DtqError, RedisFull, RedisUnavailable
from dtq.redisio import CommandError, NoScript, Server
from dtq.redisio.wire import pack


class Color(enum.StrEnum):
    RED = "red"


def test_a_command_goes_out_as_an_array_of_byte_strings():
    packed = pack(["SET", b"k", 1, 1.5, "é", Color.RED, -7])
    words = [b"*7", b"$3", b"SET", b"$1", b"k", b"$1", b"1", b"$3", b"1.5", b"$2", b"\xc3\xa9"]
    words += [b"$3", b"red", b"$2", b"-7", b""]
    assert packed == b"\r\n".join(words)


def test_large_arguments_go_out_like_small_ones_and_are_copied_once():
    wide, data = "€" * 10_000, b"x" * 1_000_000
    args = ["SET", data, 7, wide, 10**4_000, 0.5, Color.RED]
    reader = hiredis.Reader()
    reader.feed(pack(args))
    assert reader.gets() == [b"SET", data, b"7", wide.encode(), b"%d" % (10**4_000), b"0.5", b"red"]
    for wrong in (None, True, ["a"]):
        with pytest.raises(TypeError):
            pack([data, wrong])


class Odd(float):
    def __repr__(self):
        raise ArithmeticError


class Long(bytes):
    def __len__(self):
        return 99


class Size(enum.IntEnum):
    SMALL = 3
    HUGE = 10**5_000


def test_what_is_derived_from_an_argument_goes_out_as_what_it_is():
    """hiredis crashes the process on the first, and refuses the last."""
    words = [b"*3", b"$3", b"0.5", b"$2", b"ab", b"$1", b"3", b""]
    assert pack([Odd(0.5), Long(b"ab"), Size.SMALL]) == b"\r\n".join(words)
    with pytest.raises(ValueError, match="4300 digits"):
        pack([Size.HUGE])


def test_a_number_that_python_does_not_write_down_is_a_value_error():
    with pytest.raises(ValueError, match="4300 digits"):
        pack(["SET", "k", 10**5_000])


@pytest.mark.parametrize("argument", [True, None, ["a"], bytearray(b"x"), memoryview(b"abcd")[::2]])
def test_what_is_no_argument_is_refused_before_anything_is_sent(server, argument):
    with pytest.raises(TypeError):
        server.call("SET", "k", argument)
    assert server.call("EXISTS", "k") == 0


def test_replies_come_as_bytes_numbers_none_and_lists(any_server):
    check_reply_shapes(any_server)


def test_the_fake_server_gives_replies_of_the_same_shapes(memory_server):
    check_reply_shapes(memory_server)


def check_reply_shapes(server: Server) -> None:
    assert server.call("SET", "k", b"\xff\x00") == b"OK"
    assert server.call("GET", "k") == b"\xff\x00"
    assert server.call("GET", "nothing") is None
    assert server.call("INCRBY", "n", 3) == 3
    assert server.call("HSET", "h", "a", 1.5) == 1
    assert server.call("HGETALL", "h") == [b"a", b"1.5"]
    assert server.call("ZADD", "z", 1.5, "m") == 1
    assert server.call("ZRANGE", "z", 0, -1, "WITHSCORES") == [b"m", b"1.5"]
    assert server.call("XADD", "s", "1-1", "f", "v") == b"1-1"
    assert server.call("XRANGE", "s", "-", "+") == [[b"1-1", [b"f", b"v"]]]
    assert server.call("XGROUP", "CREATE", "s", "g", "0") == b"OK"
    assert server.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">") == [[b"s", [[b"1-1", [b"f", b"v"]]]]]
    assert server.call("EVAL", "return {1, 'a', {2, false}, {}}", 0) == [1, b"a", [2, None], []]
    seconds, microseconds = server.call("TIME")
    assert int(seconds) > 1e9
    assert 0 <= int(microseconds) < 1e6
    sha = server.call("SCRIPT", "LOAD", "return ARGV[1]")
    assert server.call("EVALSHA", sha, 0, "x") == b"x"


def check_refusals(server: Server) -> None:
    server.call("SET", "text", "x")
    with pytest.raises(NoScript):
        server.call("EVALSHA", "0" * 40, 0)
    for prefix, command in [
        ("WRONGTYPE", ("LPUSH", "text", 1)),
        ("NOGROUP", ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "nothing", ">")),
        ("ERR", ("NOSUCHCOMMAND",)),
        ("MINE", ("EVAL", "return redis.error_reply('MINE because')", 0)),
        ("MINE", ("EVAL", "return {1, redis.error_reply('MINE because')}", 0)),
    ]:
        with pytest.raises(CommandError) as caught:
            server.call(*command)
        assert caught.value.prefix == prefix
    assert server.call("PING") == b"PONG"


def test_a_refused_command_raises_and_the_connection_goes_on(any_server):
    before = any_server.call("INFO", "stats")
    check_refusals(any_server)
    after = any_server.call("INFO", "stats")
    assert _connections(before) == _connections(after)


def test_the_fake_server_refuses_with_the_same_errors(memory_server):
    check_refusals(memory_server)


def _connections(info: bytes) -> int:
    return int(info.partition(b"total_connections_received:")[2].partition(b"\r\n")[0])


def check_pipeline(server: Server) -> None:
    assert server.pipeline([]) == []
    assert server.pipeline([("SET", "a", 1), ("GET", "a"), ("LRANGE", "none", 0, -1)]) == [b"OK", b"1", []]
    with pytest.raises(CommandError, match="WRONGTYPE"):
        server.pipeline([("SET", "b", 1), ("LPUSH", "a", 1), ("EVALSHA", "0" * 40, 0), ("SET", "c", 1)])
    assert server.pipeline([("GET", "b"), ("GET", "c")]) == [b"1", b"1"]
    with pytest.raises(CommandError, match="MINE"):
        server.pipeline([("EVAL", "return {1, redis.error_reply('MINE because')}", 0), ("SET", "d", 1)])
    assert server.call("GET", "d") == b"1"


def test_a_pipeline_reads_every_reply_before_it_raises_the_first_refusal(any_server):
    check_pipeline(any_server)


def test_the_fake_server_takes_pipelines(memory_server):
    check_pipeline(memory_server)


@pytest.mark.parametrize("size", [0, 1, 4095, 65536, 1_000_003])
def test_arguments_and_replies_of_any_size_survive(server, size):
    value = bytes(i % 251 for i in range(size))
    server.call("SET", "k", value)
    assert server.call("GET", "k") == value
    assert server.pipeline([("GET", "k"), ("STRLEN", "k")]) == [value, size]


def test_a_pipeline_larger_than_every_buffer_on_the_way_is_no_deadlock(server):
    big = b"x" * 300_000
    server.call("SET", "k", big)
    assert server.pipeline([("GET", "k")] * 40) == [big] * 40


def test_redis_at_maxmemory_is_redis_full_also_inside_a_script(any_server):
    """REDIS-08: Redis 6.2 wraps the refusal of a command inside a script; it is recognised all the same."""
    any_server.call("SET", "k", "x" * 1000)
    any_server.call("CONFIG", "SET", "maxmemory", 1)
    for command in [("SET", "a", 1), ("EVAL", "return redis.call('SET', 'a', 1)", 0)]:
        with pytest.raises(RedisFull) as caught:
            any_server.call(*command)
        assert caught.value.context["reason"] == "maxmemory"
    assert any_server.call("GET", "k") == b"x" * 1000
    assert any_server.last_failure is None


def test_a_read_only_replica_is_unavailable_also_inside_a_script(redis_server, server_factory):
    program = redis_server.program
    replica = server_factory(program, tcp=True)
    server = Server.connect(replica.url)
    server.call("REPLICAOF", "127.0.0.1", 1)
    for command in [("SET", "a", 1), ("EVAL", "return redis.call('SET', 'a', 1)", 0)]:
        with pytest.raises(RedisUnavailable) as caught:
            server.call(*command)
        assert caught.value.context["reason"] == "readonly"
    server.call("REPLICAOF", "NO", "ONE")
    assert server.call("SET", "a", 1) == b"OK"
    server.close()


def test_a_server_busy_with_a_script_is_unavailable(server_factory, wait_until):
    process = server_factory(options=("--lua-time-limit", "50"))
    server = Server.connect(process.url, timeout_s=5)
    slow = "local t = redis.call('TIME')[1] + 2 while redis.call('TIME')[1] + 0 < t do end"
    thread = threading.Thread(target=lambda: _quietly(server, slow))
    thread.start()
    wait_until(lambda: _reason(server) == "busy", what="the script to run for longer than its limit")
    server.call("SCRIPT", "KILL")
    thread.join()
    assert server.call("PING") == b"PONG"
    server.close()


def _quietly(server: Server, script: str) -> None:
    with contextlib.suppress(DtqError):
        server.call("EVAL", script, 0)


def _reason(server: Server) -> object:
    try:
        return server.call("PING")
    except RedisUnavailable as error:
        return error.context["reason"]
