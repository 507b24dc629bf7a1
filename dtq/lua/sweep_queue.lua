--[[ sweep_queue: forgets a queue that has no task and was not used for a day: streams, counters, wake stream, name
What it counted is added to the counters of `_other`.
One that has tasks, or is paused, counts as used now, so that it does not stand in front of those that can go.
Returns 1 when it is gone, else 0; a repeat returns 0.
]]
--@include clock
--@args queue idle_ms

local used = redis.call('ZSCORE', key.queues(), queue)
if not used or tonumber(used) > now_ms - idle_ms then return 0 end
local kept_for = redis.call('EXISTS', key.paused(queue))
for _, status in ipairs({ 'pending', 'queued', 'running', 'retrying', 'succeeded', 'failed', 'dead_lettered',
  'cancelled', 'expired' }) do
  kept_for = kept_for + redis.call('ZCARD', key.index(queue, status))
end
if kept_for > 0 then
  redis.call('ZADD', key.queues(), text(now_ms), queue)
  return 0
end
local totals = redis.call('HGETALL', key.totals(queue))
for at = 1, #totals, 2 do  -- what was counted stays counted: sums of the counters never go back
  local task_type, what = string.match(totals[at], '^(.*):([^:]+)$')
  if what then
    redis.call('HINCRBY', key.totals('_other'), '_other:' .. what, totals[at + 1])
    redis.call('SREM', key.counted_types(), queue .. ' ' .. task_type)
  end
end
redis.call('SREM', key.counted_queues(), queue)
for band = 0, 9 do redis.call('DEL', key.stream(queue, band)) end
redis.call('DEL', key.wake(queue), key.parked(queue), key.totals(queue))
redis.call('ZREM', key.queues(), queue)
return 1
