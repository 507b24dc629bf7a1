--[[ task_cancel: pending | queued | retrying -> cancelled; running: only asked for, its worker hears of it
Returns {'CANCELLED'} {'REQUESTED'} {'FINISHED', status} {'UNKNOWN'} {'NEWER'} {'UNDECODABLE'}; a repeat of operation_id
gets the first answer.
Events: TASK_CANCELLED.
]]
--@include clock journal index wake ticket finish record audit cancel
--@args id operation_id who reason

local told, status = cancel(id, operation_id, reason)
if told == 'AGAIN' then return { status == 'cancelled' and 'CANCELLED' or 'REQUESTED' } end
if told == 'ASKED' then return { 'REQUESTED' } end
if told == 'REQUESTED' then audit(who, operation_id, 'task.cancel', id, 1, 'requested') end
if told == 'CANCELLED' then audit(who, operation_id, 'task.cancel', id, 1) end
write_index()
write_journal()
return { told, status }
