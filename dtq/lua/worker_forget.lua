--[[ worker_forget: removes a consumer from the bands of queues, where it has nothing pending: deleting one that has would
drop its pending entries. Returns the number of bands where entries are still pending; a repeat finds less to do.
]]
--@args worker
--@items queue

local busy = 0
for at = ITEMS, #ARGV, ITEM do
  --@item at
  for band = 0, 9 do
    local stream = key.stream(queue, band)
    local pending = redis.call('EXISTS', stream) == 1
      and redis.pcall('XPENDING', stream, WORKER_GROUP, '-', '+', 1, worker)
    if pending and not pending.err then
      if #pending > 0 then busy = busy + 1 else redis.call('XGROUP', 'DELCONSUMER', stream, WORKER_GROUP, worker) end
    end
  end
end
return busy
