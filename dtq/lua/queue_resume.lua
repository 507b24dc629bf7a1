--[[ queue_resume: the queue is claimed again, and a worker is woken for it
Returns 1 resumed, 0 it was not paused; a repeat of operation_id gets the first answer.
Events: QUEUE_RESUMED.
]]
--@include clock journal wake audit
--@args queue operation_id who actor reason

if redis.call('DEL', key.paused(queue)) == 0 then return audited(operation_id) and 1 or 0 end
if redis.call('ZSCORE', key.queues(), queue) then wake(queue) end  -- else there is nothing to wake for
event('QUEUE_RESUMED', '', queue, '', '0', '', cjson.encode({ by = actor, reason = reason }))
audit(who, operation_id, 'queue.resume', queue, 1)
write_journal()
return 1
