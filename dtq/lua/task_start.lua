--[[ task_start: running -> running: a suspect's start, written before its handler runs
alone: '1' when nothing runs beside it in its worker, so that the worker's death is certainly its doing; '0' withdraws it.
Returns 1, or 0 when the lease was lost. A repeat changes nothing.
]]
--@args id claimed_seq worker alone

local status, seq, owner = unpack(redis.call('HMGET', key.task(id), 'status', 'seq', 'worker'))
if status ~= 'running' or seq ~= claimed_seq or owner ~= worker then return 0 end
redis.call('HSET', key.task(id), 'alone', alone)
return 1
