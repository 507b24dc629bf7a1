--[[ What the scripts of the message queue share: who may go on, what is counted, who is woken, how long keys live.
`mq_finish` comes last in every script that changes something: it writes what was gathered. ]]
--@include clock
local mq_tallies, mq_rung, mq_freed, mq_added = {}, {}, {}, 0
local mq_version, mq_visibility

local function mq_room_for_queue()
  --[[ Names whose keys have expired make room. Returns false when there are as many queues as may be. ]]
  if redis.call('ZCARD', key.mq_queues()) < MAX_QUEUES then return true end
  for _, name in ipairs(redis.call('ZRANGE', key.mq_queues(), 0, 9)) do
    if redis.call('EXISTS', key.mq_config(name)) == 0 then redis.call('ZREM', key.mq_queues(), name) end
  end
  return redis.call('ZCARD', key.mq_queues()) < MAX_QUEUES
end

local function mq_refusal(queue, visibility)
  --[[ visibility: in ms, '' for who does not care. Returns nil when the caller may go on. ]]
  local v, stored = unpack(redis.call('HMGET', key.mq_config(queue), 'v', 'visibility'))
  mq_version, mq_visibility = v, stored
  if v and (tonumber(v) or 0) > SCHEMA_VERSION then return { 'NEWER', v } end
  if stored and visibility ~= '' and stored ~= visibility then return { 'MISMATCH', stored } end
  if not v and not mq_room_for_queue() then return { 'TOO_MANY_QUEUES', MAX_QUEUES } end
  return nil
end

local function mq_open(queue, visibility)
  --[[ The first write of a caller that was not refused. ]]
  if not mq_version then
    redis.call('HSET', key.mq_config(queue), 'v', SCHEMA_VERSION)
    redis.call('ZADD', key.mq_queues(), text(now_ms), queue)
    redis.call('PERSIST', key.mq_queues())
  end
  if visibility ~= '' and not mq_visibility then redis.call('HSET', key.mq_config(queue), 'visibility', visibility) end
end

local function mq_count(topic, what, number)
  local field = topic .. ' ' .. what
  mq_tallies[field] = (mq_tallies[field] or 0) + (number or 1)
end

local function mq_ring(topic)
  --[[ Wakes one subscription that waits for the topic; '' for what becomes due. ]]
  mq_rung[topic] = true
end

local function mq_write_tokens(queue, idle_ms)
  for topic in pairs(mq_rung) do
    local stream = topic == '' and key.mq_due_wake(queue) or key.mq_wake(queue, topic)
    if not redis.call('XADD', stream, 'NOMKSTREAM', 'MAXLEN', '~', WAKE_MAXLEN, '*', 't', '') then
      -- nobody has come yet, or the stream was deleted under one who waits: that one hears of a new entry on any server
      redis.call('XADD', stream, '*', 't', '')
      redis.call('PEXPIRE', stream, math.min(PRESENCE_KEEP, tonumber(idle_ms)))
    end
  end
end

local function mq_size(queue, topic)
  --[[ What waits, is in flight or is delayed. ]]
  return redis.call('XLEN', key.mq_topic(queue, topic)) + redis.call('ZCARD', key.mq_delayed(queue, topic))
end

local function mq_gone(topic)
  --[[ Something has left the topic. ]]
  mq_freed[topic] = (mq_freed[topic] or 0) + 1
end

local function mq_wait_for_room(queue, topic)
  --[[ Whoever makes room says so, as long as somebody asks for it. ]]
  redis.call('HSET', key.mq_waiting(queue), topic, '1')
  redis.call('PEXPIRE', key.mq_waiting(queue), WAITING_KEEP)
end

local function mq_tell_room(queue)
  if not next(mq_freed) or redis.call('EXISTS', key.mq_waiting(queue)) == 0 then return end
  for topic, number in pairs(mq_freed) do
    if redis.call('HEXISTS', key.mq_waiting(queue), topic) == 1 then
      redis.call('XADD', key.mq_room(queue), 'MAXLEN', '~', WAKE_MAXLEN, '*', 'topic', topic, 'n', number)
      redis.call('PEXPIRE', key.mq_room(queue), WAITING_KEEP)
    end
  end
end

local function mq_has_own_counts(counts, topic)
  --[[ First come, first served: names from outside must not grow a hash, or the labels of metrics, for ever. ]]
  if redis.call('HEXISTS', counts, '=' .. topic) == 1 then return true end
  if tonumber(redis.call('HGET', counts, '=') or 0) >= MAX_COUNTED then return false end
  redis.call('HINCRBY', counts, '=', 1)
  redis.call('HSET', counts, '=' .. topic, '')
  return true
end

local function mq_write_counts(queue)
  local counts = key.mq_counts(queue)
  for field, number in pairs(mq_tallies) do
    local topic, what = string.match(field, '^(%S+)( .+)$')
    if redis.call('HINCRBY', counts, field, number) == number and not mq_has_own_counts(counts, topic) then
      redis.call('HDEL', counts, field)
      redis.call('HINCRBY', counts, '_other' .. what, number)
    end
  end
end

local function mq_keep(queue, idle_ms)
  --[[ A queue that holds messages stays; one that holds none expires, not before its subscriptions have left. ]]
  local names = { key.mq_config(queue), key.mq_topics(queue), key.mq_counts(queue) }
  if mq_added > 0 then
    if redis.call('PTTL', key.mq_config(queue)) >= 0 then  -- it was empty
      for _, name in ipairs(names) do redis.call('PERSIST', name) end
      redis.call('PERSIST', key.mq_queues())
    end
    return
  end
  if redis.call('HLEN', key.mq_keys(queue)) > 0 then return end
  local keep_ms = tonumber(idle_ms)
  if redis.call('EXISTS', key.mq_consumers(queue)) == 1 then keep_ms = math.max(keep_ms, PRESENCE_KEEP) end
  for _, name in ipairs(names) do redis.call('PEXPIRE', name, keep_ms) end
  if redis.call('ZCARD', key.mq_queues()) == 1 then redis.call('PEXPIRE', key.mq_queues(), keep_ms) end
end

local function mq_finish(queue, idle_ms)
  for topic in pairs(mq_freed) do
    if redis.call('XLEN', key.mq_topic(queue, topic)) == 0 then
      redis.call('PEXPIRE', key.mq_topic(queue, topic), idle_ms)
    end
  end
  mq_write_counts(queue)
  mq_write_tokens(queue, idle_ms)
  mq_tell_room(queue)
  mq_keep(queue, idle_ms)
end
