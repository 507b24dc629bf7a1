--[[ task_progress: running -> running, with what the handler says of itself
Returns 1, or 0 when the lease was lost. What says the same as before, a repeat too, is no news.
Events: TASK_PROGRESS.
]]
--@include clock journal
--@args id claimed_seq worker progress

local status, seq, queue, task_type, attempt, before, owner = unpack(redis.call('HMGET', key.task(id), 'status', 'seq',
  'queue', 'type', 'attempt', 'progress', 'worker'))
if status ~= 'running' or seq ~= claimed_seq or owner ~= worker then return 0 end
if not (queue and task_type and attempt) then return 0 end
if before == progress then return 1 end
redis.call('HSET', key.task(id), 'progress', progress)
event('TASK_PROGRESS', id, queue, task_type, attempt, worker, progress)
write_journal()
return 1
