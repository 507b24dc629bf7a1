--[[ reconcile: finds tasks whose record and place have come apart (a stream deleted by hand, a restored backup, a ticket
trimmed away) and puts them back: every task that is not terminal stands in a stream, in the schedule or under a lease.
Looks at `limit` entries of one index from rank `start`, newest last.
A running task without a pending entry is left alone while its worker is alive: that worker will finish it.
Returns {looked at, repaired, removed}; a repeat finds nothing to repair.
Events: TASK_QUEUED.
]]
--@include clock journal index wake ticket
--@args queue status start limit

local ids = redis.call('ZRANGE', key.index(queue, status), start, start + limit - 1)
local repaired, removed = 0, 0

local function in_place(id, band, entry, worker)
  if status == 'pending' or status == 'retrying' then return redis.call('ZSCORE', key.schedule(), id) end
  local stream = key.stream(queue, band)
  if not entry or #redis.call('XRANGE', stream, entry, entry) == 0 then
    return status == 'running' and worker and redis.call('EXISTS', key.worker(worker)) == 1
  end
  if status == 'queued' then return true end
  local pending = redis.pcall('XPENDING', stream, WORKER_GROUP, entry, entry, 1)
  if not pending.err and #pending > 0 then return true end
  return worker and redis.call('EXISTS', key.worker(worker)) == 1
end

for _, id in ipairs(ids) do
  local record = key.task(id)
  local v, found, band, entry, seq, attempt, created, task_type, worker, available, own_queue = unpack(redis.call(
    'HMGET', record, 'v', 'status', 'priority', 'entry', 'seq', 'attempt', 'created', 'type', 'worker', 'available',
    'queue'))
  if v and tonumber(v) and tonumber(v) > SCHEMA_VERSION then
    found = nil
  elseif not found or found ~= status or own_queue ~= queue then
    drop(key.index(queue, status), id)
    if found and own_queue and created then put(key.index(own_queue, found), created, id) end
    removed = removed + 1
  elseif not in_place(id, band, entry, worker) then
    repaired = repaired + 1
    count(queue, task_type, 'reconciled')
    event('TASK_QUEUED', id, queue, task_type, attempt or '0', '', 'reconciled')
    if status == 'pending' or status == 'retrying' then
      schedule(id, available or text(now_ms))
    else
      if entry then remove_ticket(queue, band, entry) end
      seq = seq + 1
      entry = add_ticket(id, queue, band, seq, (attempt or 0) + 1)
      redis.call('HSET', record, 'status', 'queued', 'seq', seq, 'entry', entry)
      if status == 'running' then
        redis.call('HDEL', record, 'worker', 'started', 'alone')
        move(id, queue, 'running', 'queued', created)
      end
      wake(queue)
    end
  end
end
write_index()
write_journal()
return { #ids, repaired, removed }
