--[[ task_submit: nothing -> queued | pending, for many submissions, each by itself
Order of each: sent again? idempotency record, admission (queues, depth, schedule), write. The id was chosen before, so
a script that is sent twice makes one task.
options: what most submissions leave out, with tabs between: max_attempts, timeout, due_ms, delay_ms, idem, fingerprint,
ttl_ms; '' for none at all. Each argument of its own would cost half a microsecond.
Returns one reply an item: created_us for what is new, or {'AGAIN', created_us} {'REPLAY', task_id} {'BUSY', task_id}
{'REUSED', task_id} {'QUEUE_FULL', depth} {'SCHEDULE_FULL', size} {'TOO_MANY_QUEUES', number}
Events: TASK_QUEUED for what waits in a stream.
]]
--@include clock journal index wake ticket states
--@args
--@items id queue task_type priority options extra payload

local depths, known, used, replies = {}, {}, {}, {}
local delayed_before, delayed_here = nil, 0

local function depth_of(queue)
  if not depths[queue] then
    depths[queue] = redis.call('ZCARD', key.index(queue, 'queued')) + redis.call('ZCARD', key.index(queue, 'running'))
  end
  return depths[queue]
end

local function delayed()
  --[[ Exact without a counter of its own: retries stand in the schedule too but do not count against the limit. ]]
  local size = redis.call('ZCARD', key.schedule())
  if size < MAX_SCHEDULED then return size end
  if not delayed_before then
    delayed_before = 0  -- without those of this script: the index is written at its end
    for _, queue in ipairs(redis.call('ZRANGE', key.queues(), 0, -1)) do
      delayed_before = delayed_before + redis.call('ZCARD', key.index(queue, 'pending'))
    end
  end
  return delayed_before + delayed_here
end

local function used_at(queue)
  --[[ When it was used, to the minute; false for a new queue. ]]
  if known[queue] == nil then known[queue] = redis.call('ZSCORE', key.queues(), queue) end
  return known[queue]
end

local function refusal(id, queue, idem, fingerprint, waits)
  local created = redis.call('HGET', key.task(id), 'created')
  if created then return { 'AGAIN', created } end
  if idem ~= '' then
    local record = redis.call('HMGET', key.idempotency(idem), 'task', 'fingerprint')
    if record[1] then
      local status = redis.call('HGET', key.task(record[1]), 'status')
      if status then
        if record[2] ~= fingerprint then return { 'REUSED', record[1] } end
        if TERMINAL[status] then return { 'REPLAY', record[1] } end
        return { 'BUSY', record[1] }
      end
    end
  end
  if not used_at(queue) then
    local queues = redis.call('ZCARD', key.queues())
    for name in pairs(used) do if known[name] == false then queues = queues + 1 end end
    if not used[queue] and queues >= MAX_QUEUES then return { 'TOO_MANY_QUEUES', queues } end
  end
  if waits then
    local size = delayed()
    if size >= MAX_SCHEDULED then return { 'SCHEDULE_FULL', size } end
  elseif depth_of(queue) >= MAX_QUEUE_DEPTH then
    return { 'QUEUE_FULL', depth_of(queue) }
  end
  return nil
end

local function optional(fields, name, value)
  if value ~= '' then
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
end

local function write_options(id, max_attempts, timeout, idem, fingerprint, ttl_ms, extra)
  local fields = {}
  optional(fields, 'max_attempts', max_attempts)
  optional(fields, 'timeout', timeout)
  optional(fields, 'extra', extra)
  if ttl_ms ~= '' then
    optional(fields, 'ttl', ttl_ms)
    optional(fields, 'expires', text(now_ms + tonumber(ttl_ms)))
  end
  if idem ~= '' then
    optional(fields, 'idem', idem)
    optional(fields, 'fingerprint', fingerprint)
    local record = key.idempotency(idem)
    redis.call('HSET', record, 'v', SCHEMA_VERSION, 'task', id, 'state', 'active', 'fingerprint', fingerprint)
    redis.call('PERSIST', record)
  end
  if #fields > 0 then redis.call('HSET', key.task(id), unpack(fields)) end
end

local function note_use(queue)
  if not used[queue] then
    used[queue] = true
    local before = used_at(queue)
    if not before or tonumber(before) < now_ms - 60000 then put(key.queues(), text(now_ms), queue) end
  end
end

local created = text(now_us)
for at = ITEMS, #ARGV, ITEM do
  --@item at
  local max_attempts, timeout, due_ms, delay_ms, idem, fingerprint, ttl_ms = '', '', '', '', '', '', ''
  local due = now_ms
  if options ~= '' then
    max_attempts, timeout, due_ms, delay_ms, idem, fingerprint, ttl_ms =
      string.match(options, '^(.-)\t(.-)\t(.-)\t(.-)\t(.-)\t(.-)\t(.-)$')
    due = tonumber(due_ms) or (now_ms + (tonumber(delay_ms) or 0))
  end
  local waits = due > now_ms
  local reply = refusal(id, queue, idem, fingerprint, waits)
  if not reply then
    local status, name, place = 'queued', 'entry', nil
    if waits then
      status, name, place = 'pending', 'available', text(due)
      schedule(id, place)
      delayed_here = delayed_here + 1
    else
      place = add_ticket(id, queue, priority, 1, 1)
      depths[queue] = depths[queue] + 1
      wake(queue)
      event('TASK_QUEUED', id, queue, task_type, '0', '')
    end
    redis.call('HSET', key.task(id), 'v', text(SCHEMA_VERSION), 'status', status, 'type', task_type, 'queue', queue,
      'priority', priority, 'seq', '1', 'created', created, name, place)
    redis.call('SET', key.payload(id), payload)
    if options ~= '' or extra ~= '' then
      write_options(id, max_attempts, timeout, idem, fingerprint, ttl_ms, extra)
    end
    move(id, queue, nil, status, created)
    count(queue, task_type, 'submitted')
    note_use(queue)
    reply = created
  end
  replies[#replies + 1] = reply
end
write_index()
write_journal()
return replies
