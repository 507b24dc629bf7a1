--[[ worker_command: what an operator tells a worker, which hears it in its next tick
command: quiet, stop. A worker that was told to stop is not told anything else.
Returns 1 told, 0 it had been told that, or more, already, -1 there is no such worker; a repeat of operation_id gets the
first answer.
]]
--@include audit
--@args worker command operation_id who

local record = key.worker(worker)
local keep, told = unpack(redis.call('HMGET', record, 'keep', 'command'))
if not keep then return -1 end
if told == command or told == 'stop' then return audited(operation_id) and 1 or 0 end
redis.call('HDEL', record, 'command')  -- at maxmemory only what begins without a need may go on
redis.call('HSET', record, 'command', command)
audit(who, operation_id, 'worker.' .. command, worker, 1)
return 1
