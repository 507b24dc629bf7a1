--[[ What of a topic waits: entries that were handed back, then those that nobody has claimed yet. ]]
--@include waiting

local function mq_waiting_entries(queue, topic, before, limit)
  --[[ Returns entries as XRANGE gives them, at most `limit`, up to the id `before` ('+' for all), those handed back first. ]]
  local stream, found = key.mq_topic(queue, topic), {}
  if redis.call('XLEN', stream) == 0 then return found end
  local parked = redis.pcall('XPENDING', stream, WORKER_GROUP, '-', before, limit, PARKED)
  for _, row in ipairs(parked.err and {} or parked) do
    local entry = redis.call('XRANGE', stream, row[1], row[1])[1]
    if entry then found[#found + 1] = entry end
  end
  if #found < limit then
    for _, entry in ipairs(redis.call('XRANGE', stream, unread_from(stream), before, 'COUNT', limit - #found)) do
      found[#found + 1] = entry
    end
  end
  return found
end
