--[[ task_discard: dead_lettered -> failed, marked as discarded, an operator's decision: the entry goes, the retention of
the task begins
Returns {'DISCARDED'} {'WRONG_STATE', status} {'UNKNOWN'} {'NEWER'} {'UNDECODABLE'}; a repeat of operation_id gets the
first answer.
Events: DEAD_LETTER_DISCARDED.
]]
--@include clock journal index discard audit
--@args id operation_id who

local code, status = discard(id, operation_id)
if code == 'AGAIN' then return { 'DISCARDED' } end
if code == 'DISCARDED' then
  audit(who, operation_id, 'task.discard', id, 1)
  write_index()
  write_journal()
end
return { code, status or '' }
