--[[ mq_leave: a subscription ends: all that it still owns is handed back, then its names are deleted
The wake streams go with the last one. Whoever is left is told of work, since a token may have been on its way to this
one. topics: a line each. Returns {handed back, 1 when all is done}: ask again while that is 0. A repeat does the rest.
]]
--@include clock mq mq_presence mq_park mq_delayed
--@args queue consumer topics idle_ms

local parked = 0
for topic in string.gmatch(topics, '[^\n]+') do
  local number, all = mq_park(queue, topic, consumer, nil, MOST_PARKED - parked)
  parked = parked + number
  if not all then
    mq_finish(queue, idle_ms)
    return { parked, 0 }
  end
  mq_drop_consumer(queue, topic, consumer)
  if redis.call('XLEN', key.mq_topic(queue, topic)) > 0 then mq_ring(topic) end
end
redis.call('ZREM', key.mq_consumers(queue), consumer)
redis.call('DEL', key.mq_consumer(queue, consumer))
if redis.call('EXISTS', key.mq_consumers(queue)) == 0 then
  mq_rung = {}
  redis.call('DEL', key.mq_due_wake(queue))
  for topic in string.gmatch(topics, '[^\n]+') do redis.call('DEL', key.mq_wake(queue, topic)) end
elseif mq_next_due(queue) then
  mq_ring('')
end
mq_finish(queue, idle_ms)
return { parked, 1 }
