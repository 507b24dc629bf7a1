--[[ Delayed messages: by due time in a sorted set a topic, the topics by their next one in another, the data in a hash.
The hash holds `first n data`. ]]
--@include clock mq mq_message

local function mq_set_due(queue, topic)
  --[[ Puts the topic where its next message says. ]]
  local head = redis.call('ZRANGE', key.mq_delayed(queue, topic), 0, 0, 'WITHSCORES')
  if head[2] then
    redis.call('ZADD', key.mq_due(queue), head[2], topic)
  else
    redis.call('ZREM', key.mq_due(queue), topic)
  end
end

local function mq_next_due(queue)
  --[[ Returns the time in ms at which the next message is due, or nil. ]]
  return redis.call('ZRANGE', key.mq_due(queue), 0, 0, 'WITHSCORES')[2]
end

local function mq_delay(queue, topic, message_key, data, first, n, delay_ms)
  local before, due_ms = mq_next_due(queue), text(now_ms + delay_ms)
  redis.call('HSET', key.mq_later(queue), message_key, first .. ' ' .. n .. ' ' .. data)
  redis.call('ZADD', key.mq_delayed(queue, topic), due_ms, message_key)
  redis.call('HSET', key.mq_keys(queue), message_key, topic .. ' @')
  mq_added = mq_added + 1
  redis.call('HSET', key.mq_config(queue), 'delays', text(now_ms))
  mq_index_topic(queue, topic)
  mq_set_due(queue, topic)
  if not before or tonumber(due_ms) < tonumber(before) then
    mq_ring('')
  end
end

local function mq_parse_later(packed)
  --[[ Returns first, n, data; nil for what is not ours. ]]
  local _, stop, first, n = string.find(packed or '', '^(%d+) (%d+) ')
  if stop then return first, n, string.sub(packed, stop + 1) end
  return nil
end

local function mq_undelay(queue, topic, message_key)
  --[[ Removes a delayed message and returns it as `mq_parse_later` does. The caller sets the topic's due time. ]]
  redis.call('ZREM', key.mq_delayed(queue, topic), message_key)
  local packed = redis.call('HGET', key.mq_later(queue), message_key)
  redis.call('HDEL', key.mq_later(queue), message_key)
  return mq_parse_later(packed)
end

local function mq_make_ready(queue, limit)
  --[[ Moves what is due to its topic, the earliest topics first. ]]
  for _, topic in ipairs(redis.call('ZRANGEBYSCORE', key.mq_due(queue), '-inf', text(now_ms), 'LIMIT', 0, limit)) do
    local due = redis.call('ZRANGEBYSCORE', key.mq_delayed(queue, topic), '-inf', text(now_ms), 'LIMIT', 0, limit)
    for _, message_key in ipairs(due) do
      local first, n, data = mq_undelay(queue, topic, message_key)
      if first then
        mq_add(queue, topic, message_key, data, first, n)
      else
        mq_forget_key(queue, message_key, topic, '@')
        mq_count(topic, 'corrupt')
      end
      limit = limit - 1
    end
    mq_set_due(queue, topic)
    if limit <= 0 then break end
  end
end
