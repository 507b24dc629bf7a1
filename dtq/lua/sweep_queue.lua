--[[ sweep_queue: forgets a queue that has no task and was not used for a day: streams, counters, wake stream, name
Returns 1 when it is gone, else 0; a repeat returns 0.
]]
--@include clock
--@args queue idle_ms

local used = redis.call('ZSCORE', key.queues(), queue)
if not used or tonumber(used) > now_ms - idle_ms or redis.call('EXISTS', key.paused(queue)) == 1 then return 0 end
for _, status in ipairs({ 'pending', 'queued', 'running', 'retrying', 'succeeded', 'failed', 'dead_lettered',
  'cancelled', 'expired' }) do
  if redis.call('ZCARD', key.index(queue, status)) > 0 then return 0 end
end
for band = 0, 9 do redis.call('DEL', key.stream(queue, band)) end
redis.call('DEL', key.wake(queue), key.parked(queue), key.totals(queue))
redis.call('ZREM', key.queues(), queue)
return 1
