--[[ reconcile: finds tasks whose record and place have come apart (a stream deleted by hand, a restored backup, a ticket
trimmed away) and puts them back: every task that is not terminal stands in a stream, in the schedule or under a lease.
Looks at `limit` entries of one index from rank `start`, newest last.
A running task without a pending entry is left alone while its worker is alive: that worker will finish it. When it is
not, the attempt is lost; one whose cancellation was asked for ends `cancelled`. A record that cannot be read becomes a
dead letter. What waits in a queue that nobody serves expires here, when its time to live has run out.
Returns {looked at, repaired, gone from this index}; a repeat finds nothing to repair.
Events: TASK_QUEUED, TASK_CANCELLED, TASK_DEAD_LETTERED, TASK_EXPIRED.
]]
--@include clock journal index wake ticket finish dead history record
--@args queue status start limit

local ids = redis.call('ZRANGE', key.index(queue, status), start, start + limit - 1)
local repaired, gone = 0, 0
local longest = tonumber(redis.call('ZREVRANGE', key.leases(), 0, 0, 'WITHSCORES')[2] or 0)
local scheduled = status == 'pending' or status == 'retrying'

local delivered = {}

local function was_delivered(stream, entry)
  --[[ Whether the group has given this entry out: it will not do so again, unless it is pending. ]]
  if not delivered[stream] then
    delivered[stream] = '0-0'
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
      local fields = {}
      for at = 1, #group, 2 do fields[group[at]] = group[at + 1] end
      if fields.name == WORKER_GROUP then delivered[stream] = fields['last-delivered-id'] end
    end
  end
  local last_ms, last_number = string.match(delivered[stream], '^(%d+)-(%d+)$')
  local ms, number = string.match(entry, '^(%d+)-(%d+)$')
  if ms ~= last_ms then return tonumber(ms) < tonumber(last_ms) end
  return tonumber(number) <= tonumber(last_number)
end

local function in_place(id, band, entry, worker, seen)
  if scheduled then return redis.call('ZSCORE', key.schedule(), id) end
  local stream = key.stream(queue, band)
  local found = redis.pcall('XRANGE', stream, entry or '-', entry or '-')
  if found.err and string.find(found.err, 'WRONGTYPE', 1, true) then return true end  -- nothing can be put back there
  if names_entry(entry) and not found.err and #found > 0 then
    if status == 'queued' and not was_delivered(stream, entry) then return true end
    local pending = redis.pcall('XPENDING', stream, WORKER_GROUP, entry, entry, 1)
    if not pending.err and #pending > 0 then
      if readable_now(pending[1][2]) then
        park(queue, band, entry)
        wake(queue)
      end
      return true
    end
  end
  -- a living worker says so in its ticks; one that came back under the name of a dead one does not hold it
  return status == 'running' and worker and redis.call('EXISTS', key.worker(worker)) == 1
    and now_ms - seen <= 2 * longest
end

local function put_back(id)
  --[[ Returns whether there was something to repair, and whether the task has left this index by that. ]]
  local record = key.task(id)
  local band, entry, seq, attempt, created, task_type, worker, available, started, cancel, idem, held, expires = unpack(
    redis.call('HMGET', record, 'priority', 'entry', 'seq', 'attempt', 'created', 'type', 'worker', 'available', 'started',
    'cancel', 'idem', 'held', 'expires'))
  if not (band and #band == 1 and readable(task_type, seq, created, ' ' .. band .. ' ' .. (attempt or '0') .. ' ' ..
    (available or '0') .. ' ' .. (started or '0') .. ' ' .. (held or '0') .. ' ' .. (expires or '0'))) then
    if entry and band then remove_ticket(queue, band, entry) end
    if scheduled then redis.call('ZREM', key.schedule(), id) end
    bury_unreadable(id, status, queue, band)
    return true, true
  end
  if status == 'queued' and expires and now_ms >= tonumber(expires) then
    remove_ticket(queue, band, entry)
    redis.call('HSET', record, 'status', 'expired', 'finished', text(now_ms))
    finish({ id = id, queue = queue, type = task_type, status = status, created = created, attempt = attempt,
      idem = idem }, 'expired')
    return false, true
  end
  local seen = math.max(tonumber(started) or 0, tonumber(held) or 0)
  if in_place(id, band, entry, worker, seen) then return false, false end
  count(queue, task_type, 'reconciled')
  if scheduled then
    schedule(id, available or text(now_ms))
    event('TASK_QUEUED', id, queue, task_type, attempt or '0', '', 'reconciled')
    return true, false
  end
  if entry then remove_ticket(queue, band, entry) end
  if status == 'running' then
    count(queue, task_type, 'attempt_lost')
    remember(id, attempt, worker, started, '"o":"lost","m":"the worker was lost, and so was its lease"')
    redis.call('HDEL', record, 'worker', 'started', 'alone', 'progress', 'held')
    if cancel == '1' then
      redis.call('HSET', record, 'status', 'cancelled', 'finished', text(now_ms), 'seq', seq + 1)
      finish({ id = id, queue = queue, type = task_type, status = status, created = created, attempt = attempt,
        worker = worker, idem = idem }, 'cancelled', 'the worker was lost')
      return true, true
    end
    move(id, queue, 'running', 'queued', created)
  end
  entry = add_ticket(id, queue, band, seq + 1, (attempt or 0) + 1)
  redis.call('HSET', record, 'status', 'queued', 'seq', seq + 1, 'entry', entry)
  event('TASK_QUEUED', id, queue, task_type, attempt or '0', '', 'reconciled')
  wake(queue)
  return true, status == 'running'
end

for _, id in ipairs(ids) do
  local v, found, own_queue, created = unpack(redis.call('HMGET', key.task(id), 'v', 'status', 'queue', 'created'))
  if v and tonumber(v) and tonumber(v) > SCHEMA_VERSION then
    -- a newer leader's work
  elseif found ~= status or own_queue and own_queue ~= queue then
    drop(key.index(queue, status), id)
    if not found then
      redis.call('DEL', key.payload(id), key.attempts(id))
    elseif own_queue and created and string.find(created, '^%d+$') then
      put(key.index(own_queue, found), created, id)
    end
    gone = gone + 1
  else
    local mended, left = put_back(id)
    if mended then repaired = repaired + 1 end
    if left then gone = gone + 1 end
  end
end
write_index()
write_journal()
return { #ids, repaired, gone }
