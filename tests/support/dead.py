"""Many dead letters in a moment: written as the engine writes them, but by one script a thousand."""

from __future__ import annotations

from tests.support.engine import Engine

_SEED = """
local clock = redis.call('TIME')
local us, ns = clock[1] * 1000000 + clock[2], ARGV[1]
for n = tonumber(ARGV[3]), tonumber(ARGV[4]) do
  local id, created = string.format('%012x7%019x', n, n), string.format('%.0f', us + n)
  local entry = redis.call('XADD', ns .. ':stream:dead-letter', '*', 'id', id, 'queue', ARGV[2], 'type', 'echo',
    'reason', n % 2 == 0 and 'exhausted' or 'permanent', 'attempts', '1', 'worker', 'w1', 'error',
    '{"class":"ValueError","message":"it did not work"}')
  redis.call('HSET', ns .. ':task:' .. id, 'v', 1, 'status', 'dead_lettered', 'type', 'echo', 'queue', ARGV[2],
    'priority', 5, 'seq', 2, 'created', created, 'attempt', 1, 'failures', 1, 'worker', 'w1', 'started',
    string.format('%.0f', us / 1000), 'finished', string.format('%.0f', us / 1000), 'reason', 'exhausted', 'dead',
    entry, 'error', '{"class":"ValueError","message":"it did not work"}')
  redis.call('SET', ns .. ':payload:' .. id, '{}')
  redis.call('RPUSH', ns .. ':attempts:' .. id, '{"n":1,"w":"w1","s":1,"f":2,"o":"failed","d":1}')
  redis.call('ZADD', ns .. ':index:' .. ARGV[2] .. ':dead_lettered', created, id)
end
redis.call('ZADD', ns .. ':queues', string.format('%.0f', us / 1000), ARGV[2])
"""


def seed_dead(engine: Engine, number: int, queue: str = "default", first: int = 1) -> list[str]:
    """Make dead letters, every second one `exhausted`, the others `permanent`. Returns the ids of their tasks."""
    for start in range(first, first + number, 1_000):
        last = min(start + 999, first + number - 1)
        engine.server.call("EVAL", _SEED, 1, engine.keys.anchor, engine.keys.namespace, queue, start, last)
    return [f"{n:012x}7{n:019x}" for n in range(first, first + number)]
