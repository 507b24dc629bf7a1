--[[ worker_forget: removes a consumer from the bands of one queue, where it has nothing pending: deleting one that has
would drop its pending entries. Returns the number of bands where entries are still pending; a repeat finds less to do.
]]
--@args worker queue

local busy = 0
for band = 0, 9 do
  local stream = key.stream(queue, band)
  local pending = redis.pcall('XPENDING', stream, WORKER_GROUP, '-', '+', 1, worker)
  if not pending.err then
    if #pending > 0 then busy = busy + 1 else redis.call('XGROUP', 'DELCONSUMER', stream, WORKER_GROUP, worker) end
  end
end
return busy
