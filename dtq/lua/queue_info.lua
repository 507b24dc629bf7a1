--[[ queue_info: what stands in queues, in one look. Read-only.
statuses: their names, comma-separated. Returns an entry a queue: {counts in the order of the statuses, entries of bands
0 to 9, of these claimed by workers, since when in us the longest waiting of each band has waited or '', pause record or ''}
]]
--@include waiting
--@args statuses
--@items queue

local function since(entry)
  --[[ When the task that an entry stands for was created, or its delay ended; nil when it stands for none. ]]
  local status, created, own_entry, available = unpack(redis.call('HMGET', key.task(entry[2][2]), 'status', 'created',
    'entry', 'available'))
  if status ~= 'queued' or own_entry ~= entry[1] then return nil end
  return string.match(available and available .. '000' or created or '', '^%d+$')
end

local function longest_waiting(queue, band)
  --[[ The elder of the two that are next: of those handed back, and of those that nobody has claimed. ]]
  local stream, eldest = key.stream(queue, band), nil
  local parked = redis.pcall('XPENDING', stream, WORKER_GROUP, '-', '+', 1, PARKED)
  if not parked.err and #parked > 0 then
    local entry = redis.call('XRANGE', stream, parked[1][1], parked[1][1])[1]
    eldest = entry and since(entry)
  end
  for _, entry in ipairs(redis.call('XRANGE', stream, unread_from(stream), '+', 'COUNT', 10)) do
    local waits_since = since(entry)
    if waits_since then
      if not eldest or tonumber(waits_since) < tonumber(eldest) then eldest = waits_since end
      break
    end
  end
  return eldest or ''
end

local replies = {}
for at = ITEMS, #ARGV, ITEM do
  --@item at
  local counts, lengths, taken, oldest = {}, {}, {}, {}
  for status in string.gmatch(statuses, '[^,]+') do
    counts[#counts + 1] = redis.call('ZCARD', key.index(queue, status))
  end
  for band = 0, 9 do
    local stream = key.stream(queue, band)
    lengths[band + 1] = redis.call('XLEN', stream)
    taken[band + 1], oldest[band + 1] = 0, ''
    if lengths[band + 1] > 0 then
      taken[band + 1] = claimed(stream)
      if taken[band + 1] < lengths[band + 1] then oldest[band + 1] = longest_waiting(queue, band) end
    end
  end
  replies[#replies + 1] = { counts, lengths, taken, oldest, redis.call('GET', key.paused(queue)) or '' }
end
return replies
