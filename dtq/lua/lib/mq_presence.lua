--[[ Subscriptions that are there, and the names that those which were killed have left in the groups. ]]
--@include clock mq

local function mq_wake_topics(queue, topics)
  --[[ topics: their names, a line each. Keeps the wake streams of a subscription alive. ]]
  redis.call('PEXPIRE', key.mq_due_wake(queue), PRESENCE_KEEP)
  for topic in string.gmatch(topics, '[^\n]+') do redis.call('PEXPIRE', key.mq_wake(queue, topic), PRESENCE_KEEP) end
end

local function mq_seen(queue, consumer)
  --[[ The subscription has its record. ]]
  local record = key.mq_consumer(queue, consumer)
  redis.call('PEXPIRE', record, RECORD_KEEP)  -- needs no memory: at maxmemory the rest may follow then
  redis.call('HSET', record, 'seen', text(now_ms))
  redis.call('ZADD', key.mq_consumers(queue), text(now_ms + PRESENCE_KEEP), consumer)
  redis.call('PEXPIRE', key.mq_consumers(queue), RECORD_KEEP)
  mq_wake_topics(queue, redis.call('HGET', record, 'topics'))
end

local function mq_drop_consumer(queue, topic, consumer)
  --[[ Only where nothing is pending: deleting a name that still has something would orphan that. ]]
  local pending = redis.pcall('XPENDING', key.mq_topic(queue, topic), WORKER_GROUP, '-', '+', 1, consumer)
  if pending.err then return true end
  if #pending > 0 then return false end
  redis.call('XGROUP', 'DELCONSUMER', key.mq_topic(queue, topic), WORKER_GROUP, consumer)
  return true
end

local function mq_forget_the_dead(queue)
  --[[ Looks after one subscription that was not seen for long; what it held is taken from it first. ]]
  local consumer = redis.call('ZRANGEBYSCORE', key.mq_consumers(queue), '-inf', text(now_ms), 'LIMIT', 0, 1)[1]
  if not consumer then return end
  local clean = true
  for topic in string.gmatch(redis.call('HGET', key.mq_consumer(queue, consumer), 'topics') or '', '[^\n]+') do
    clean = mq_drop_consumer(queue, topic, consumer) and clean
  end
  if clean then
    redis.call('ZREM', key.mq_consumers(queue), consumer)
    redis.call('DEL', key.mq_consumer(queue, consumer))
  else
    redis.call('ZADD', key.mq_consumers(queue), text(now_ms + PRESENCE_KEEP), consumer)
  end
end
