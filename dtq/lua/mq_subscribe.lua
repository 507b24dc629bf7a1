--[[ mq_subscribe: a subscription comes, or comes again after its record or its wake streams were lost
topics: all of its, a line each; items the same. Tokens are read from the beginning: whoever waits looks first anyway.
Returns {'DONE'} or a refusal as mq_put does. A repeat does the same again.
]]
--@include clock mq mq_presence
--@args queue consumer visibility topics host process idle_ms
--@items topic

local refused = mq_refusal(queue, visibility)
if refused then return refused end
mq_open(queue, visibility)
redis.call('HSET', key.mq_consumer(queue, consumer), 'topics', topics, 'host', host, 'process', process)
redis.call('HSETNX', key.mq_consumer(queue, consumer), 'since', text(now_ms))
redis.pcall('XGROUP', 'CREATE', key.mq_due_wake(queue), WORKER_GROUP, '0', 'MKSTREAM')
for at = ITEMS, #ARGV, ITEM do
  --@item at
  redis.pcall('XGROUP', 'CREATE', key.mq_wake(queue, topic), WORKER_GROUP, '0', 'MKSTREAM')
end
mq_seen(queue, consumer)
mq_finish(queue, idle_ms)
return { 'DONE' }
