--[[ sample_queues: notes how much waits and runs in queues, and how long the longest has waited, for the charts
A minute keeps the most that was seen in it. Counters cannot tell these later; so the leader looks a few times a minute.
Returns 1; a repeat notes the same.
]]
--@include clock longest band
--@args
--@items queue

local minute = math.floor(now_ms / 60000)
local gauges = key.gauges(minute)

local function note(field, number)
  if number > tonumber(redis.call('HGET', gauges, field) or -1) then
    redis.call('HSET', gauges, field, text(number))
  end
end

local function longest_s(queue)
  local eldest = now_us
  for band = 0, 9 do
    if band_length(queue, band) > 0 then
      eldest = math.min(eldest, tonumber(longest_waiting(queue, band)) or now_us)
    end
  end
  return math.floor((now_us - eldest) / 1000000)
end

redis.call('HSET', gauges, 'looked', '1')
for at = ITEMS, #ARGV, ITEM do
  --@item at
  local waiting = redis.call('ZCARD', key.index(queue, 'queued'))
  local running = redis.call('ZCARD', key.index(queue, 'running'))
  if running > 0 then note(queue .. ':running', running) end
  if waiting > 0 then
    note(queue .. ':waiting', waiting)
    note(queue .. ':oldest', longest_s(queue))
  end
end
redis.call('PEXPIRE', gauges, MINUTE_KEEP)
return 1
