--[[ queue_info: what stands in queues, in one look. Read-only.
statuses: their names, comma-separated. Returns an entry a queue: {counts in the order of the statuses, entries of bands
0 to 9, of these claimed by workers, creation time in us of the longest waiting of each band or '', pause record or ''}
]]
--@args statuses
--@items queue

local function claimed(stream)
  --[[ What was handed back is pending too, under the parked consumers, but it waits. ]]
  local summary = redis.pcall('XPENDING', stream, WORKER_GROUP)
  if summary.err or summary[1] == 0 then return 0 end
  local number = summary[1]
  for _, consumer in ipairs(summary[4]) do
    if string.sub(consumer[1], 1, #PARKED) == PARKED then number = number - tonumber(consumer[2]) end
  end
  return number
end

local function longest_waiting(queue, band, entries, number_claimed)
  --[[ Parked entries stand in front; of the others the first that nobody has claimed. Good to a hundred entries. ]]
  if entries == number_claimed then return '' end
  for _, entry in ipairs(redis.call('XRANGE', key.stream(queue, band), '-', '+', 'COUNT', 100)) do
    local task = redis.call('HMGET', key.task(entry[2][2]), 'status', 'created', 'entry')
    if task[1] == 'queued' and task[3] == entry[1] then return task[2] end
  end
  return ''
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
      oldest[band + 1] = longest_waiting(queue, band, lengths[band + 1], taken[band + 1])
    end
  end
  replies[#replies + 1] = { counts, lengths, taken, oldest, redis.call('GET', key.paused(queue)) or '' }
end
return replies
