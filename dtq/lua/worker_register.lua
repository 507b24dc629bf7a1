--[[ worker_register: a worker says who it is, for how long it leases, and what its handlers ask for
keep_ms: three heartbeats, never less than the lease. items: fields of the record, `policy:<type>` among them.
Returns {now_ms, number of workers}; a repeat writes the same again.
Events: WORKER_STARTED, once.
]]
--@include clock journal
--@args worker lease_ms keep_ms
--@items field value

local record = key.worker(worker)
-- what a former worker of this name left goes, commands to it included; freeing first also passes at maxmemory
if redis.call('DEL', record) == 0 then event('WORKER_STARTED', '', '', '', '0', worker) end
redis.call('HSET', record, 'v', SCHEMA_VERSION, 'lease', lease_ms, 'keep', keep_ms, 'started', text(now_ms),
  'heartbeat', text(now_ms))
for at = ITEMS, #ARGV, ITEM do
  --@item at
  redis.call('HSET', record, field, value)
end
redis.call('PEXPIRE', record, keep_ms)
redis.call('ZADD', key.workers(), text(now_ms + keep_ms), worker)
redis.call('ZADD', key.leases(), lease_ms, worker)
write_journal()
return { text(now_ms), redis.call('ZCARD', key.workers()) }
