--[[ queue_resume: the queue is claimed again, and a worker is woken for it
Returns 1 resumed, 0 it was not paused: the answer of a repeat, for which nothing is left to do.
Events: QUEUE_RESUMED.
]]
--@include clock journal wake
--@args queue record

if redis.call('DEL', key.paused(queue)) == 0 then return 0 end
if redis.call('ZSCORE', key.queues(), queue) then wake(queue) end  -- else there is nothing to wake for
event('QUEUE_RESUMED', '', queue, '', '0', '', record)
write_journal()
return 1
