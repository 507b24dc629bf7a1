--[[ Dead messages stand in a topic of their own with the reason and where they come from; it is bounded. ]]
--@include clock mq mq_message

local function mq_evict(queue, dead_topic)
  local oldest = redis.call('XRANGE', key.mq_topic(queue, dead_topic), '-', '+', 'COUNT', 1)[1]
  mq_take_out(queue, dead_topic, oldest[1])
  local message_key = mq_read(oldest[2])
  if message_key then mq_forget_key(queue, message_key, dead_topic, oldest[1]) end
  mq_gone(dead_topic)
  mq_count(dead_topic, 'evicted')
end

local function mq_bury(queue, dead_topic, topic, message_key, data, first, n, reason)
  --[[ The caller has taken the entry out of its topic. ]]
  mq_add(queue, dead_topic, message_key, data, first, n, 'reason', reason, 'topic', topic, 'at', text(now_ms))
  for _ = 1, math.min(redis.call('XLEN', key.mq_topic(queue, dead_topic)) - DLQ_MAXLEN, 3) do
    mq_evict(queue, dead_topic)
  end
  mq_count(topic, 'dead')
end

local function mq_bury_corrupt(queue, dead_topic, topic, entry, fields)
  --[[ An entry that cannot be read: what there is of it is kept. ]]
  local found = {}
  for at = 1, #fields, 2 do found[fields[at]] = fields[at + 1] end
  mq_take_out(queue, topic, entry)
  local message_key = found.key
  if message_key and not mq_forget_key(queue, message_key, topic, entry) and mq_known(queue, message_key) then
    message_key = nil  -- the name of another message
  end
  if not message_key or message_key == '' then message_key = 'corrupt:' .. topic .. ':' .. entry end
  local missing = not found.data and 'it has no data' or not found.key and 'it has no key' or 'its fields are wrong'
  mq_bury(queue, dead_topic, topic, message_key, found.data or '', text(now_ms), '0', 'corrupt: ' .. missing)
  mq_gone(topic)
  mq_count(topic, 'corrupt')
end
