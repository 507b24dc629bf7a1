--[[ check_queues: whether queues hold as many entries as tasks that wait or run there, and the schedule as many as wait for
their time: a stream that was deleted by hand is noticed within seconds, not by the next round of the reconciler. Rings
where work waits, for the case that a token was lost with the worker that took it.
all: '1' when the items are all queues there are: only then the schedule can be compared.
Returns {tasks that the schedule lacks, keys of bands that are no streams, queue, tasks without an entry, queue, ...}:
queues without a gap are left out.
]]
--@include band
--@args all
--@items queue

local gaps, foreign, scheduled = {}, {}, 0
for at = ITEMS, #ARGV, ITEM do
  --@item at
  local queued = redis.call('ZCARD', key.index(queue, 'queued'))
  local live = queued + redis.call('ZCARD', key.index(queue, 'running'))
  if all == '1' then
    scheduled = scheduled + redis.call('ZCARD', key.index(queue, 'pending')) +
      redis.call('ZCARD', key.index(queue, 'retrying'))
  end
  if live > 0 then
    local entries = 0
    for band = 0, 9 do
      local length, is_foreign = band_length(queue, band)
      entries = entries + length
      if is_foreign then foreign[#foreign + 1] = key.stream(queue, band) end
    end
    if entries < live then
      gaps[#gaps + 1] = queue
      gaps[#gaps + 1] = live - entries
    end
    if queued > 0 and redis.call('EXISTS', key.paused(queue)) == 0 then
      redis.pcall('XADD', key.wake(queue), 'MAXLEN', '~', WAKE_MAXLEN, '*', 't', '')  -- at maxmemory it may fail
    end
  end
end
local missing = all == '1' and math.max(0, scheduled - redis.call('ZCARD', key.schedule())) or 0
return { missing, foreign, unpack(gaps) }
