--[[ A task is cancelled by an operator's decision: at once where it waits; where it runs, its worker hears of it. ]]
--@include clock journal index wake ticket finish record

local function cancel(id, operation_id, reason, wanted)
  --[[ wanted: nil, or the seq and the status, with a space between, that the task must have still.
  Returns CANCELLED, REQUESTED, ASKED (it runs and was asked before, which stays theirs who were first), CHANGED, or
  AGAIN, FINISHED, each with its status, or UNKNOWN, NEWER, UNDECODABLE. ]]
  local record = key.task(id)
  local v, status, queue, band, entry, created, task_type, attempt, idem, operation, worker, asked, seq = unpack(
    redis.call('HMGET', record, 'v', 'status', 'queue', 'priority', 'entry', 'created', 'type', 'attempt', 'idem',
      'operation', 'worker', 'cancel', 'seq'))
  if v and tonumber(v) and tonumber(v) > SCHEMA_VERSION then return 'NEWER' end
  if not status then return 'UNKNOWN' end
  if operation == operation_id then return 'AGAIN', status end
  if not (queue and band and readable(task_type, '1', created, ' ' .. (attempt or '0'))) then return 'UNDECODABLE' end
  if wanted and wanted ~= (seq or '0') .. ' ' .. status then return 'CHANGED' end
  if status == 'running' then
    if asked == '1' then return 'ASKED' end
    redis.call('HDEL', record, 'cancel')  -- at maxmemory only what begins without a need may go on
    redis.call('HSET', record, 'cancel', '1', 'operation', operation_id, 'reason', reason)
    return 'REQUESTED'
  end
  if status == 'queued' then
    if entry then remove_ticket(queue, band, entry) end
  elseif status == 'pending' or status == 'retrying' then
    redis.call('ZREM', key.schedule(), id)
  else
    return 'FINISHED', status
  end
  redis.call('HSET', record, 'status', 'cancelled', 'finished', text(now_ms), 'operation', operation_id, 'reason',
    reason)
  finish({ id = id, queue = queue, type = task_type, status = status, created = created, attempt = attempt, idem = idem,
    worker = worker }, 'cancelled', reason)
  return 'CANCELLED'
end
