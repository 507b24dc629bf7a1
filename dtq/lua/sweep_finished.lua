--[[ sweep_finished: removes ended tasks whose retention is over, or that are more than may be kept, oldest end first:
record, payload, history, result, idempotency record and index entry go together. Dead letters beyond their limit, which
may have been lowered, are evicted.
Records of a newer schema are a newer leader's work: looked at again in an hour.
Returns {number looked at, workers whose record has ended, queues that were not used for `idle_ms`, number of a newer
schema, dead letters evicted since the sweep before}, at most twenty of the two in the middle: what else there is to sweep.
A repeat finds the rest.
Events: DEAD_LETTER_EVICTED.
]]
--@include clock journal index dead
--@args limit idle_ms

local members = redis.call('ZRANGEBYSCORE', key.finished(), '-inf', text(now_ms - RETENTION_MS), 'LIMIT', 0, limit)
local excess = redis.call('ZCARD', key.finished()) - MAX_TASKS_KEPT
if #members < tonumber(limit) and excess > #members then
  members = redis.call('ZRANGE', key.finished(), 0, math.min(excess, tonumber(limit)) - 1)
end
local newer = 0

local function remove(member)
  local id, status, queue = string.match(member, '^(%S+) (%S+) (%S+)$')
  if not id then drop(key.finished(), member) return end
  local v, scope = unpack(redis.call('HMGET', key.task(id), 'v', 'idem'))
  if v and tonumber(v) and tonumber(v) > SCHEMA_VERSION then
    newer = newer + 1
    put(key.finished(), text(now_ms - RETENTION_MS + 3600000), member)
    return
  end
  drop(key.finished(), member)
  drop(key.index(queue, status), id)
  if scope and redis.call('HGET', key.idempotency(scope), 'task') == id then redis.call('DEL', key.idempotency(scope)) end
  redis.call('DEL', key.task(id), key.payload(id), key.attempts(id), key.result(id))
end

for _, member in ipairs(members) do remove(member) end
evict_excess(100)
write_index()
write_journal()
local evicted = redis.call('GET', key.evicted()) or '0'
redis.call('DEL', key.evicted())
return { #members, redis.call('ZRANGEBYSCORE', key.workers(), '-inf', text(now_ms), 'LIMIT', 0, 20),
  redis.call('ZRANGEBYSCORE', key.queues(), '-inf', text(now_ms - idle_ms), 'LIMIT', 0, 20), newer, evicted }
