--[[ Dead letters: one stream, bounded. What falls out at the old end becomes `failed`, with an event and a counter. ]]
--@include finish

local function evict_oldest()
  local oldest = redis.call('XRANGE', key.dead_letter(), '-', '+', 'COUNT', 1)[1]
  if not oldest then return false end
  redis.call('XDEL', key.dead_letter(), oldest[1])
  local task_id = oldest[2][2]
  local record = key.task(task_id)
  local status, dead, queue, task_type, created, attempt = unpack(
    redis.call('HMGET', record, 'status', 'dead', 'queue', 'type', 'created', 'attempt'))
  if status == 'dead_lettered' and dead == oldest[1] then
    redis.call('HSET', record, 'status', 'failed')
    redis.call('HDEL', record, 'dead')
    move(task_id, queue, 'dead_lettered', 'failed', created)
    event('DEAD_LETTER_EVICTED', task_id, queue, task_type, attempt or '0', '')
    count(queue, task_type, 'evicted')
    keep_for_retention(task_id, queue, 'failed')
  end
  return true
end

local function bury(task, reason)
  --[[ The attempt was the last: to the dead-letter stream, or `failed` where that is switched off.
  Returns the new status. The caller has written error and history. ]]
  local record = key.task(task.id)
  if DLQ_ENABLED == 0 then
    redis.call('HSET', record, 'status', 'failed', 'finished', text(now_ms), 'reason', reason)
    finish(task, 'failed', reason)
    return 'failed'
  end
  local entry = redis.call('XADD', key.dead_letter(), '*', 'id', task.id, 'queue', task.queue, 'type', task.type,
    'reason', reason, 'attempts', task.attempt or '0', 'worker', task.worker or '', 'error', task.error or '')
  redis.call('HSET', record, 'status', 'dead_lettered', 'finished', text(now_ms), 'reason', reason, 'dead', entry)
  finish(task, 'dead_lettered', reason)
  local excess = redis.call('XLEN', key.dead_letter()) - DLQ_MAXLEN
  for _ = 1, math.min(excess, 100) do  -- bounded: a lowered limit is reached over several scripts
    if not evict_oldest() then break end
  end
  return 'dead_lettered'
end
