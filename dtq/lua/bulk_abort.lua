--[[ bulk_abort: a bulk job goes no further; what it has done stays done. The audit tells of the job and of its abort.
Returns 1 aborted, 0 it had ended already, -1 there is no such job; a repeat of operation_id gets the first answer.
]]
--@include clock bulk
--@args job operation_id who

local record = key.bulk(job)
local state, owner, action, aim, done, skipped, failed = unpack(redis.call('HMGET', record, 'state', 'who', 'action',
  'aim', 'done', 'skipped', 'failed'))
if not state then return -1 end
if state ~= 'running' then return audited(operation_id) and 1 or 0 end
end_job({ id = job, who = owner, action = action, aim = aim, done = tonumber(done), skipped = tonumber(skipped),
  failed = tonumber(failed) }, 'aborted')
audit(who, operation_id, 'bulk.abort', job, 1)
return 1
