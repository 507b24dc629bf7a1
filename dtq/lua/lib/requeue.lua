--[[ A dead letter is queued again by an operator's decision: attempts start anew, seq and history go on. Never refused
for depth: the task was accepted once. ]]
--@include clock journal index wake ticket history record

local function requeue(id, operation_id, mark, to_queue, to_priority)
  --[[ mark: JSON members for the history. to_queue, to_priority: '' keeps what it had.
  Returns a code of `task_requeue`, and the status where it is wrong. ]]
  local record = key.task(id)
  local v, status, seq, queue, band, created, task_type, idem, dead, operation, requeued, ttl, fingerprint = unpack(
    redis.call('HMGET', record, 'v', 'status', 'seq', 'queue', 'priority', 'created', 'type', 'idem', 'dead',
      'operation', 'requeued', 'ttl', 'fingerprint'))
  if v and tonumber(v) and tonumber(v) > SCHEMA_VERSION then return 'NEWER' end
  if not status then return 'UNKNOWN' end
  if operation == operation_id then return 'AGAIN' end
  if status ~= 'dead_lettered' then return 'WRONG_STATE', status end
  if not (dead and queue and band and readable(task_type, seq, created, ' ' .. band .. ' ' ..
    (requeued or '0') .. ' ' .. (ttl or '0'))) then
    return 'UNDECODABLE'
  end
  local target = to_queue ~= '' and to_queue or queue
  band = to_priority ~= '' and to_priority or band
  if not redis.call('ZSCORE', key.queues(), target) and redis.call('ZCARD', key.queues()) >= MAX_QUEUES then
    return 'TOO_MANY_QUEUES'
  end
  seq = seq + 1
  redis.pcall('XDEL', key.dead_letter(), dead)
  local entry = add_ticket(id, target, band, seq, 1)
  redis.call('HSET', record, 'status', 'queued', 'queue', target, 'priority', band, 'seq', seq, 'entry', entry,
    'attempt', 0, 'failures', 0, 'crashes', 0, 'operation', operation_id, 'requeued', (requeued or 0) + 1,
    'available', text(now_ms))
  redis.call('HDEL', record, 'dead', 'finished', 'started', 'worker', 'error', 'reason', 'suspect', 'alone', 'cancel',
    'unknown', 'progress')
  if ttl then redis.call('HSET', record, 'expires', text(now_ms + ttl)) end
  remember(id, '0', '', text(now_ms), '"o":"requeued",' .. mark)
  drop(key.index(queue, 'dead_lettered'), id)
  put(key.index(target, 'queued'), created, id)
  redis.call('ZADD', key.queues(), text(now_ms), target)  -- at once: a second one of this script must not count it anew
  if idem then
    local idempotency = key.idempotency(idem)
    local holder = redis.call('HGET', idempotency, 'task')
    if not holder or holder == id or redis.call('EXISTS', key.task(holder)) == 0 then  -- else a newer task has the key
      redis.call('HSET', idempotency, 'v', SCHEMA_VERSION, 'task', id, 'state', 'active', 'fingerprint',
        fingerprint or '')
      redis.call('PERSIST', idempotency)
    end
  end
  event('TASK_QUEUED', id, target, task_type, '0', '', 'requeued')
  count(target, task_type, 'requeued')
  wake(target)
  return 'QUEUED'
end
