--[[ Dead letters: one stream, bounded. What falls out at the old end becomes `failed`, with an event and a counter. ]]
--@include finish record

local function evict(entry, fields)
  --[[ Returns false for what is left alone: a newer process's business. ]]
  local task_id = fields[2]
  local record = key.task(task_id)
  local v, status, dead, queue, task_type, created, attempt = unpack(
    redis.call('HMGET', record, 'v', 'status', 'dead', 'queue', 'type', 'created', 'attempt'))
  if v and tonumber(v) and tonumber(v) > SCHEMA_VERSION then return false end
  redis.call('XDEL', key.dead_letter(), entry)
  if status == 'dead_lettered' and dead == entry then
    write_index()  -- this very script may have buried it
    queue, task_type = queue or 'default', plain_type(task_type) or '_unknown'
    if not string.find(created or '', '^%d+$') then created = text(now_us) end
    redis.call('HSET', record, 'status', 'failed')
    redis.call('HDEL', record, 'dead')
    move(task_id, queue, 'dead_lettered', 'failed', created)
    event('DEAD_LETTER_EVICTED', task_id, queue, task_type, attempt or '0', '')
    count(queue, task_type, 'evicted')
    keep_for_retention(task_id, queue, 'failed')
  end
  return true
end

local function evict_excess(most)
  --[[ most: how many at once; a limit that was lowered is reached over several scripts. What a newer process has buried
  is stepped over, and stays until one of its kind evicts it. ]]
  local wanted = math.min(redis.call('XLEN', key.dead_letter()) - DLQ_MAXLEN, most)
  local left = wanted
  for _, beyond in ipairs({ 0, 20 }) do
    if left > 0 then
      for _, found in ipairs(redis.call('XRANGE', key.dead_letter(), '-', '+', 'COUNT', left + beyond)) do
        if left > 0 and evict(found[1], found[2]) then left = left - 1 end
      end
    end
  end
  if left < wanted then  -- until the next sweep says so
    redis.call('INCRBY', key.evicted(), wanted - left)
    redis.call('PEXPIRE', key.evicted(), 86400000)
  end
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
  evict_excess(3)
  return 'dead_lettered'
end

local function bury_unreadable(id, status, queue, band)
  --[[ Sets right what lists, a requeue and an eviction need, so that none of them meets the same fault again. The
  payload is left as it is. The caller has removed ticket and schedule entry. ]]
  local record = key.task(id)
  local task_type, seq, created, attempt, idem = unpack(
    redis.call('HMGET', record, 'type', 'seq', 'created', 'attempt', 'idem'))
  local function number(found, default) return found and string.find(found, '^%d+$') and found or default end
  local task = { id = id, queue = queue, type = plain_type(task_type) or '_unknown', status = status,
    created = number(created, text(now_us)), attempt = number(attempt, '0'), idem = idem,
    error = '{"class":"Undecodable","message":"the record could not be read; something else than dtq changed it"}' }
  redis.call('HDEL', record, 'entry', 'max_attempts', 'timeout', 'failures', 'suspect', 'alone', 'crashes', 'worker',
    'started', 'expires', 'ttl', 'unknown', 'available', 'requeued', 'cancel', 'progress')
  redis.call('HSET', record, 'v', SCHEMA_VERSION, 'type', task.type, 'queue', queue, 'priority',
    string.match(band or '', '^%d$') or '0', 'seq', number(seq, '1'), 'created', task.created,
    'attempt', task.attempt, 'error', task.error)
  put(key.queues(), text(now_ms), queue)
  bury(task, 'undecodable')
end
