--[[ worker_leave: a worker's record ends: it said so itself, or its heartbeats stopped long ago
gone: '' when it leaves by itself, '1' when another one found it stale: then only if its record is really over.
Gives up the leader's lock if it held it, so that another takes over at once.
Returns 1 when a record ended, else 0: the answer of a repeat.
Events: WORKER_STOPPED, WORKER_STALE.
]]
--@include clock journal wake
--@args worker gone

local until_ms = redis.call('ZSCORE', key.workers(), worker)
if gone == '1' and (not until_ms or tonumber(until_ms) > now_ms) then return 0 end
if redis.call('GET', key.scheduler_lock()) == worker then
  redis.call('DEL', key.scheduler_lock())
  redis.call('XADD', key.scheduler_wake(), 'MAXLEN', '~', WAKE_MAXLEN, '*', 't', '')
end
redis.call('DEL', key.worker(worker))
redis.call('ZREM', key.leases(), worker)
if redis.call('ZREM', key.workers(), worker) == 0 then return 0 end
event(gone == '1' and 'WORKER_STALE' or 'WORKER_STOPPED', '', '', '', '0', worker)
write_journal()
return 1
