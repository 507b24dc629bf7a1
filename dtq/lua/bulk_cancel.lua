--[[ bulk_cancel: a step of a bulk job on tasks that a filter has found: what waits is cancelled, what runs is asked to end.
place: where the job must stand; reached: where it stands after this, '' to renew the lease only. looked: how many
records the filter has looked at. moving: '1' when the filter asks for what changes as a task moves on, so that one that
has moved since it was looked at is left alone. last: '1' when there are no more, which ends the job; the audit tells it
once.
Returns {'RUNNING', changed} {'DONE', changed} {'ABORTED'} {'GONE'} {'HELD'}: another process does it. A repeat changes
nothing: the job stands elsewhere then.
Events: TASK_CANCELLED.
]]
--@include clock journal index wake ticket finish record cancel bulk
--@args id runner lease_ms place reached looked moving last reason
--@items task seq status

local job, code = take_job(id, runner, lease_ms)
if not job then return { code } end
if reached == '' or job.position ~= place then return { 'RUNNING', 0 } end
local changed = 0
for at = ITEMS, #ARGV, ITEM do
  --@item at
  local told = cancel(task, id, reason, moving == '1' and seq .. ' ' .. status or nil)
  if told == 'CANCELLED' or told == 'REQUESTED' then
    changed = changed + 1
    job.done = job.done + 1
  elseif told == 'NEWER' or told == 'UNDECODABLE' then
    job.failed = job.failed + 1
  else
    job.skipped = job.skipped + 1
  end
end
job.position, job.looked = reached, job.looked + looked
if last == '1' then  -- those that have never come up had ended before
  job.skipped = math.max(job.skipped, redis.call('HGET', key.bulk(id), 'total') - job.done - job.failed)
end
write_index()
write_journal()
note_job(job)
if last == '1' then
  end_job(job, 'done')
  return { 'DONE', changed }
end
return { 'RUNNING', changed }
