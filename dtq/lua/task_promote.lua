--[[ task_promote: pending | retrying -> queued, for what is due: record, ticket and schedule together, so two leaders
cannot enqueue twice and a dead one strands nothing. Expired tasks expire, a record that cannot be read becomes a dead
letter. Nothing is started, so a pause does not matter.
late_ms: only what is that late already: the leader takes what is due, others what the leader missed.
Returns {moved, next_due_ms or '', now_ms}; a repeat finds the rest.
Events: TASK_QUEUED (a delay's end), TASK_RETRIED, TASK_EXPIRED, TASK_DEAD_LETTERED.
]]
--@include clock journal index wake ticket finish dead record
--@args limit late_ms

local due = redis.call('ZRANGEBYSCORE', key.schedule(), '-inf', text(now_ms - late_ms), 'LIMIT', 0, limit)
local moved = 0
for _, id in ipairs(due) do
  local record = key.task(id)
  local v, status, seq, queue, band, attempt, created, task_type, expires, idem = unpack(redis.call('HMGET', record,
    'v', 'status', 'seq', 'queue', 'priority', 'attempt', 'created', 'type', 'expires', 'idem'))
  if v and tonumber(v) and tonumber(v) > SCHEMA_VERSION then
    redis.call('ZADD', key.schedule(), text(now_ms + 5000), id)  -- a newer leader's work: look again later
  elseif status ~= 'pending' and status ~= 'retrying' then
    redis.call('ZREM', key.schedule(), id)
  elseif not (queue and band and #band == 1 and
    readable(task_type, seq, created, ' ' .. band .. ' ' .. (attempt or '0') .. ' ' .. (expires or '0'))) then
    redis.call('ZREM', key.schedule(), id)
    bury_unreadable(id, status, queue or 'default', band)
  elseif expires and now_ms >= tonumber(expires) then
    redis.call('ZREM', key.schedule(), id)
    redis.call('HSET', record, 'status', 'expired', 'finished', text(now_ms))
    finish({ id = id, queue = queue, type = task_type, status = status, created = created, attempt = attempt,
      idem = idem }, 'expired')
  else
    redis.call('ZREM', key.schedule(), id)
    seq = seq + 1
    local entry = add_ticket(id, queue, band, seq, (attempt or 0) + 1, redis.pcall)
    if entry.err then  -- something else has put a key in the place of the stream: the others do not wait for it
      redis.call('ZADD', key.schedule(), text(now_ms + 5000), id)
    else
      redis.call('HSET', record, 'status', 'queued', 'seq', seq, 'entry', entry)
      move(id, queue, status, 'queued', created)
      event(status == 'pending' and 'TASK_QUEUED' or 'TASK_RETRIED', id, queue, task_type, attempt or '0', '')
      put(key.queues(), text(now_ms), queue)
      wake(queue)
      moved = moved + 1
    end
  end
end
write_index()
write_journal()
local head = redis.call('ZRANGE', key.schedule(), 0, 0, 'WITHSCORES')
return { moved, head[2] or '', text(now_ms) }
