--[[ task_requeue: dead_lettered -> queued, an operator's decision: attempts start anew, seq and history go on
to_queue, to_priority: '' keeps what it had.
Returns {'QUEUED'} {'WRONG_STATE', status} {'UNKNOWN'} {'NEWER'} {'TOO_MANY_QUEUES'} {'UNDECODABLE'}; a repeat of
operation_id gets the first answer.
Events: TASK_QUEUED.
]]
--@include clock journal index wake ticket history record requeue audit
--@args id operation_id who mark to_queue to_priority

local code, status = requeue(id, operation_id, mark, to_queue, to_priority)
if code == 'AGAIN' then return { 'QUEUED' } end
if code == 'QUEUED' then
  audit(who, operation_id, 'task.requeue', id, 1, to_queue)
  write_index()
  write_journal()
end
return { code, status or '' }
