--[[ worker_resign: gives up the leader's lock, if this worker has it, so that another takes over at once
Returns 1 when it had it, else 0: the answer of a repeat.
]]
--@include wake
--@args worker

if redis.call('GET', key.scheduler_lock()) ~= worker then return 0 end
redis.call('DEL', key.scheduler_lock())
redis.call('XADD', key.scheduler_wake(), 'MAXLEN', '~', WAKE_MAXLEN, '*', 't', '')
return 1
