--[[ Since when what waits in a band has waited. Reads only. ]]
--@include waiting

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
