--[[ queue_info: what stands in queues, in one look. Read-only.
statuses: their names, comma-separated. Returns an entry a queue: {counts in the order of the statuses, entries of bands
0 to 9, of these claimed by workers, since when in us the longest waiting of each band has waited or '', pause record or ''}
]]
--@include longest band
--@args statuses
--@items queue

local replies = {}
for at = ITEMS, #ARGV, ITEM do
  --@item at
  local counts, lengths, taken, oldest = {}, {}, {}, {}
  for status in string.gmatch(statuses, '[^,]+') do
    counts[#counts + 1] = redis.call('ZCARD', key.index(queue, status))
  end
  for band = 0, 9 do
    local stream = key.stream(queue, band)
    lengths[band + 1] = band_length(queue, band)
    taken[band + 1], oldest[band + 1] = 0, ''
    if lengths[band + 1] > 0 then
      taken[band + 1] = claimed(stream)
      if taken[band + 1] < lengths[band + 1] then oldest[band + 1] = longest_waiting(queue, band) end
    end
  end
  replies[#replies + 1] = { counts, lengths, taken, oldest, redis.call('GET', key.paused(queue)) or '' }
end
return replies
