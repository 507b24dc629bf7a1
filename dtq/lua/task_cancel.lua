--[[ task_cancel: pending | queued | retrying -> cancelled; running: only asked for, its worker hears of it
Returns {'CANCELLED'} {'REQUESTED'} {'FINISHED', status} {'UNKNOWN'} {'NEWER'} {'UNDECODABLE'}; a repeat of operation_id
gets the first answer.
Events: TASK_CANCELLED.
]]
--@include clock journal index wake ticket finish record audit
--@args id operation_id who reason

local record = key.task(id)
local v, status, queue, band, entry, created, task_type, attempt, idem, operation, worker, cancel = unpack(redis.call(
  'HMGET', record, 'v', 'status', 'queue', 'priority', 'entry', 'created', 'type', 'attempt', 'idem', 'operation',
  'worker', 'cancel'))
if v and tonumber(v) and tonumber(v) > SCHEMA_VERSION then return { 'NEWER' } end
if not status then return { 'UNKNOWN' } end
if operation == operation_id then return { status == 'cancelled' and 'CANCELLED' or 'REQUESTED' } end
if not (queue and band and readable(task_type, '1', created, ' ' .. (attempt or '0'))) then return { 'UNDECODABLE' } end
if status == 'running' then
  if cancel ~= '1' then  -- else somebody was first, and it is theirs
    redis.call('HDEL', record, 'cancel')  -- at maxmemory only what begins without a need may go on
    redis.call('HSET', record, 'cancel', '1', 'operation', operation_id, 'reason', reason)
    audit(who, operation_id, 'task.cancel', id, 1, 'requested')
  end
  return { 'REQUESTED' }
end
if status == 'queued' then
  if entry then remove_ticket(queue, band, entry) end
elseif status == 'pending' or status == 'retrying' then
  redis.call('ZREM', key.schedule(), id)
else
  return { 'FINISHED', status }
end
redis.call('HSET', record, 'status', 'cancelled', 'finished', text(now_ms), 'operation', operation_id, 'reason', reason)
audit(who, operation_id, 'task.cancel', id, 1)
finish({ id = id, queue = queue, type = task_type, status = status, created = created, attempt = attempt, idem = idem,
  worker = worker }, 'cancelled', reason)
write_index()
write_journal()
return { 'CANCELLED' }
