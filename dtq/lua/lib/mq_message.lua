--[[ Messages: an entry in the stream of a topic, or, while delayed, a field in a hash; and what says where a key is. ]]
--@include clock mq
local mq_begun, mq_stones = {}, nil

local function mq_index_topic(queue, topic)
  --[[ A new name takes up to two of the eldest with it that hold nothing any more: the index stays as long as it must. ]]
  if redis.call('ZADD', key.mq_topics(queue), text(now_ms), topic) == 0 then return end
  for _, name in ipairs(redis.call('ZRANGE', key.mq_topics(queue), 0, 1)) do
    if redis.call('EXISTS', key.mq_topic(queue, name), key.mq_delayed(queue, name)) == 0 then
      redis.call('ZREM', key.mq_topics(queue), name)
    elseif name ~= topic then
      redis.call('ZADD', key.mq_topics(queue), text(now_ms), name)
    end
  end
end

local function mq_read(fields)
  --[[ Returns key, data, time of the first put, deliveries before this entry; nil for an entry that is not ours. ]]
  local found = {}
  for at = 1, #fields, 2 do found[fields[at]] = fields[at + 1] end
  if found.key and found.key ~= '' and found.data and string.find(found.first or '', '^%d+$')
    and string.find(found.n or '', '^%d+$')
  then
    return found.key, found.data, found.first, tonumber(found.n)
  end
  return nil
end

local function mq_add(queue, topic, message_key, data, first, n, ...)
  --[[ ...: further fields. ]]
  local stream = key.mq_topic(queue, topic)
  local entry = redis.call('XADD', stream, '*', 'key', message_key, 'data', data, 'first', first, 'n', n, ...)
  redis.call('HSET', key.mq_keys(queue), message_key, topic .. ' ' .. entry)
  mq_added = mq_added + 1
  if not mq_begun[topic] then  -- else this script has added to it before
    mq_begun[topic] = true
    if redis.call('XLEN', stream) == 1 then redis.call('PERSIST', stream) end
    mq_index_topic(queue, topic)
    mq_ring(topic)
  end
end

local function mq_forget_key(queue, message_key, topic, entry)
  --[[ Only if it still stands for this entry: a newer message with the key is none of our business. ]]
  if redis.call('HGET', key.mq_keys(queue), message_key) == topic .. ' ' .. entry then
    redis.call('HDEL', key.mq_keys(queue), message_key)
    return true
  end
  return false
end

local function mq_take_out(queue, topic, entry)
  redis.call('XACK', key.mq_topic(queue, topic), WORKER_GROUP, entry)
  redis.call('XDEL', key.mq_topic(queue, topic), entry)
end

local function mq_stands(queue, message_key, place)
  --[[ Whether the message of a key is where its record says: something else may have deleted it. ]]
  local topic, entry = string.match(place, '^(%S+) (%S+)$')
  if entry == '@' then return redis.call('HEXISTS', key.mq_later(queue), message_key) == 1 end
  return topic and #redis.call('XRANGE', key.mq_topic(queue, topic), entry, entry) > 0
end

local function mq_sweep_keys(queue)
  --[[ Looks at a few records; those whose message is gone would keep the queue for ever. ]]
  local sample = redis.call('HRANDFIELD', key.mq_keys(queue), 10, 'WITHVALUES') or {}  -- a fake server answers nil
  for at = 1, #sample, 2 do
    if not mq_stands(queue, sample[at], sample[at + 1]) then
      redis.call('HDEL', key.mq_keys(queue), sample[at])
      mq_count(string.match(sample[at + 1], '^%S+') or '_other', 'corrupt')
    end
  end
end

local function mq_known(queue, message_key)
  --[[ Whether the key is refused. A record whose message something else has deleted does not count. ]]
  local place = redis.call('HGET', key.mq_keys(queue), message_key)
  if place and mq_stands(queue, message_key, place) then return true end
  if mq_stones == nil then mq_stones = redis.call('EXISTS', key.mq_tombstones(queue)) == 1 end
  local refused_until = mq_stones and redis.call('ZSCORE', key.mq_tombstones(queue), message_key)
  return refused_until and tonumber(refused_until) > now_ms
end

local function mq_bury_key(queue, message_key, tombstone_ms)
  --[[ Leaves a tombstone, and removes up to ten that are over. ]]
  local stones = key.mq_tombstones(queue)
  redis.call('ZADD', stones, text(now_ms + tombstone_ms), message_key)
  local over = redis.call('ZRANGEBYSCORE', stones, '-inf', text(now_ms), 'LIMIT', 0, 10)
  if #over > 0 then redis.call('ZREM', stones, unpack(over)) end
  if redis.call('PTTL', stones) < tonumber(tombstone_ms) then redis.call('PEXPIRE', stones, tombstone_ms) end
end
