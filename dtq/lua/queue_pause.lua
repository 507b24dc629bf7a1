--[[ queue_pause: nothing of the queue is claimed any more; what runs goes on
Returns 1 paused, 0 it was paused already (and stays as it was); a repeat of operation_id gets the first answer.
Events: QUEUE_PAUSED.
]]
--@include clock journal audit
--@args queue operation_id who actor reason

local found = redis.call('GET', key.paused(queue))
if found then return string.find(found, '"id":"' .. operation_id .. '"', 1, true) and 1 or 0 end
redis.call('DEL', key.paused(queue))  -- in vain: at maxmemory only what begins without a need may go on
local record = cjson.encode({ by = actor, reason = reason, at = now_ms / 1000, id = operation_id })
redis.call('SET', key.paused(queue), record)
event('QUEUE_PAUSED', '', queue, '', '0', '', record)
audit(who, operation_id, 'queue.pause', queue, 1)
write_journal()
return 1
