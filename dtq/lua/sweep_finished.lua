--[[ sweep_finished: removes ended tasks whose retention is over, or that are more than may be kept, oldest end first:
record, payload, history, result, idempotency record and index entry go together. Dead letters beyond their limit, which
may have been lowered, are evicted.
Returns {number removed, workers whose record has ended, queues that were not used for `idle_ms`}, at most twenty of
each: what else there is to sweep. A repeat finds the rest.
Events: DEAD_LETTER_EVICTED.
]]
--@include clock journal index dead
--@args limit idle_ms

local members = redis.call('ZRANGEBYSCORE', key.finished(), '-inf', text(now_ms - RETENTION_MS), 'LIMIT', 0, limit)
local excess = redis.call('ZCARD', key.finished()) - MAX_TASKS_KEPT
if #members < tonumber(limit) and excess > #members then
  members = redis.call('ZRANGE', key.finished(), 0, math.min(excess, tonumber(limit)) - 1)
end
for _, member in ipairs(members) do
  local id, status, queue = string.match(member, '^(%S+) (%S+) (%S+)$')
  drop(key.finished(), member)
  if id then
    drop(key.index(queue, status), id)
    local scope = redis.call('HGET', key.task(id), 'idem')
    if scope and redis.call('HGET', key.idempotency(scope), 'task') == id then
      redis.call('DEL', key.idempotency(scope))
    end
    redis.call('DEL', key.task(id), key.payload(id), key.attempts(id), key.result(id))
  end
end
evict_excess(100)
write_index()
write_journal()
return { #members, redis.call('ZRANGEBYSCORE', key.workers(), '-inf', text(now_ms), 'LIMIT', 0, 20),
  redis.call('ZRANGEBYSCORE', key.queues(), '-inf', text(now_ms - idle_ms), 'LIMIT', 0, 20) }
