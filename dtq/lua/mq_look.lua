--[[ mq_look: messages of a topic as they stand, the next ones first; in flight and delayed ones after those that wait.
message_key: '' for the topic's first `limit`, else the one message with the key, wherever it is (topic is ignored).
Read-only. Returns {now in ms, messages}; a message is {state, topic, key, data, first, deliveries, consumer or '',
due in ms or '', its further fields}; data is cut to `most` bytes where that is not 0.
]]
--@include clock mq_message mq_delayed mq_waiting
--@args queue topic message_key limit most

local found = {}

local function cut(data)
  return tonumber(most) > 0 and string.sub(data, 1, tonumber(most)) or data
end

local function show(topic, entry, fields)
  local pending = redis.pcall('XPENDING', key.mq_topic(queue, topic), WORKER_GROUP, entry, entry, 1)
  local row = not pending.err and pending[1] or { entry, '', 0, 0 }
  local own_key, data, first, n = mq_read(fields)
  local state = (row[2] == '' or row[2] == PARKED) and 'waiting' or 'in_flight'
  if own_key then
    found[#found + 1] = { state, topic, own_key, cut(data), first, n + row[4], state == 'waiting' and '' or row[2], '',
      fields }
  else
    found[#found + 1] = { 'corrupt', topic, '', '', '', row[4], '', '', {} }
  end
end

local function show_delayed(topic, own_key)
  local first, n, data = mq_parse_later(redis.call('HGET', key.mq_later(queue), own_key))
  local due = redis.call('ZSCORE', key.mq_delayed(queue, topic), own_key)
  if first then
    found[#found + 1] = { 'delayed', topic, own_key, cut(data), first, tonumber(n), '', due or '', {} }
  end
end

local function show_in_flight(topic, stream, wanted)
  local pending = redis.pcall('XPENDING', stream, WORKER_GROUP, '-', '+', wanted + tonumber(limit))
  for _, row in ipairs(pending.err and {} or pending) do
    if wanted == 0 then return end
    local entry = row[2] ~= PARKED and redis.call('XRANGE', stream, row[1], row[1])[1]
    if entry then
      show(topic, entry[1], entry[2])
      wanted = wanted - 1
    end
  end
end

if message_key ~= '' then
  local place = redis.call('HGET', key.mq_keys(queue), message_key) or ''
  local at_topic, entry = string.match(place, '^(%S+) (%S+)$')
  if entry == '@' then
    show_delayed(at_topic, message_key)
  elseif entry then
    local stands = redis.call('XRANGE', key.mq_topic(queue, at_topic), entry, entry)[1]
    if stands then show(at_topic, entry, stands[2]) end
  end
  return { text(now_ms), found }
end
for _, entry in ipairs(mq_waiting_entries(queue, topic, '+', tonumber(limit))) do show(topic, entry[1], entry[2]) end
if #found < tonumber(limit) then show_in_flight(topic, key.mq_topic(queue, topic), limit - #found) end
if #found < tonumber(limit) then
  for _, own_key in ipairs(redis.call('ZRANGE', key.mq_delayed(queue, topic), 0, limit - #found - 1)) do
    show_delayed(topic, own_key)
  end
end
return { text(now_ms), found }
