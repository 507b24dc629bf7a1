--[[ bulk_begin: writes down what a bulk job is to do; steps of other scripts do it
first: where it begins; of tasks to cancel, just above `latest`. exact: '0' when there may be more than `total`.
aim: what the audit names: a queue, or the job itself. task_ids: of 32 characters each, without a separator; '' for a
filter. latest: the last dead letter, or the last task, that the job may touch; never later than the last that there is now.
Returns {'NEW'} {'TOO_MANY', number of jobs that have not ended}; a repeat gets the first answer.
]]
--@include clock
--@args job action who aim filter task_ids first latest to_queue to_priority rate total exact

if redis.call('EXISTS', key.bulk(job)) == 1 then return { 'NEW' } end
for _, other in ipairs(redis.call('ZRANGE', key.open_bulks(), 0, -1)) do
  if redis.call('HGET', key.bulk(other), 'state') ~= 'running' then redis.call('ZREM', key.open_bulks(), other) end
end
local open = redis.call('ZCARD', key.open_bulks())
if open >= BULK_OPEN then return { 'TOO_MANY', open } end
if action == 'task.cancel' then
  latest = text(latest == '' and now_us or math.min(latest, now_us))
  first = text(latest + 1) .. '-0'  -- newest first, as lists go
elseif latest == '' or tonumber(string.match(latest, '^%d+')) >= now_ms then
  local last = redis.call('XREVRANGE', key.dead_letter(), '+', '-', 'COUNT', 1)[1]
  latest = action == 'queue.purge' and text(now_us) or last and last[1] or '0-0'
end
redis.call('PEXPIRE', key.bulk(job), BULK_KEEP)  -- in vain: at maxmemory only what begins without a need may go on
redis.call('HSET', key.bulk(job), 'v', SCHEMA_VERSION, 'action', action, 'who', who, 'aim', aim, 'filter', filter,
  'task_ids', task_ids, 'position', first, 'latest', latest, 'to_queue', to_queue, 'to_priority', to_priority, 'rate',
  rate, 'total', total, 'exact', exact, 'done', 0, 'skipped', 0, 'failed', 0, 'looked', 0, 'state', 'running', 'lease',
  0, 'created', text(now_ms), 'updated', text(now_ms))
redis.call('PEXPIRE', key.bulk(job), BULK_KEEP)
redis.call('ZADD', key.open_bulks(), text(now_us), job)
redis.call('ZADD', key.bulks(), text(now_us), job)
for _, old in ipairs(redis.call('ZRANGE', key.bulks(), 0, -BULK_LISTED - 1)) do redis.call('ZREM', key.bulks(), old) end
return { 'NEW' }
