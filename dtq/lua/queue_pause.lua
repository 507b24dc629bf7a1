--[[ queue_pause: nothing of the queue is claimed any more; what runs goes on
Returns 1 paused, 0 it was paused already (and stays as it was). A repeat of the same record gets the first answer.
Events: QUEUE_PAUSED.
]]
--@include clock journal
--@args queue record

local found = redis.call('GET', key.paused(queue))
if found then return found == record and 1 or 0 end
redis.call('SET', key.paused(queue), record)
event('QUEUE_PAUSED', '', queue, '', '0', '', record)
write_journal()
return 1
