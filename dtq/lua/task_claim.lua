--[[ task_claim: queued -> running, up to `limit` tasks in strict order: the queues as given, bands 9 to 0, parked
entries of a band before those that were never claimed, else first in, first out.
A suspect (its worker died) comes alone. Tickets that stand for nothing are removed, expired tasks expire, a record that
cannot be read becomes a dead letter, one of a newer schema is set aside for a newer worker.
Looks at no more than a hundred tickets beyond the limit. Reads without BLOCK, so no band is read before its turn.
ring: '1' for a worker that has waited, and so has perhaps taken the tokens of all its queues: when it stops with work left
behind it rings for the next one. Who did not wait has taken no token, and whoever waits found nothing before he did.
Returns {claims, more, absorbed, newer, taken before}; a claim is {id, seq, attempt, type, queue, priority, max_attempts,
timeout, payload, ms waited since it was due, ms since its creation} and, unless all of them are as in a plain
submission's first claim, {..., failures, suspect, unknown_since, extra}
Not repeatable: after a lost reply `task_settle` gives back what was taken. A worker numbers its claims (`process` tells
its starts apart): one that comes twice, or only after the settling, takes nothing.
Events: TASK_STARTED, TASK_EXPIRED, TASK_DUPLICATE_ABSORBED, TASK_DEAD_LETTERED.
]]
--@include clock journal index wake ticket finish dead record claims band
--@args worker limit ring process number
--@items queue

if claimed_before(worker, process, number) then return { {}, 0, 0, 0, 1 } end
local claims, absorbed, newer, left = {}, 0, 0, tonumber(limit)
local looks = left + 100
local policies = {}
local bands = { '9', '8', '7', '6', '5', '4', '3', '2', '1', '0' }  -- as text: Lua formats a number in each key's name
local plain = 8  -- the fields of a record submitted without options and never claimed, those that `take` reads first

local function policy(task_type)
  --[[ What this worker's handlers ask for where the submission did not say: max_attempts and timeout. ]]
  local found = policies[task_type]
  if not found then
    local told = redis.call('HGET', key.worker(worker), 'policy:' .. task_type) or ''
    found = { string.match(told, '^(%d+) (%d+)$') }
    policies[task_type] = found
  end
  return found[1], found[2]
end

local function absorb(queue, band, entry, id, task_type)
  remove_ticket(queue, band, entry)
  absorbed = absorbed + 1
  event('TASK_DUPLICATE_ABSORBED', id or '', queue, plain_type(task_type) or '', '0', worker)
  count(queue, plain_type(task_type) or '_unknown', 'absorbed')
end

local function take(queue, band, entry, fields)
  --[[ Settles one ticket that this consumer now owns. Returns false when the claim must stop before it. ]]
  looks = looks - 1
  local id = ticket_task(fields)
  if not id then absorb(queue, band, entry) return true end
  local record = key.task(id)
  local v, status, own_entry, seq, task_type, created, own_queue, own_band = unpack(redis.call('HMGET', record, 'v',
    'status', 'entry', 'seq', 'type', 'created', 'queue', 'priority'))
  if v and tonumber(v) and tonumber(v) > SCHEMA_VERSION then
    redis.call('XCLAIM', key.stream(queue, band), WORKER_GROUP, PARKED .. '-v' .. v, 0, entry, 'JUSTID')
    newer = newer + 1
    return true
  end
  if status ~= 'queued' or own_entry ~= entry or (own_queue or queue) ~= queue  -- entries of two streams may be alike
    or (own_band and own_band ~= band and tonumber(own_band) ~= tonumber(band)) then
    absorb(queue, band, entry, id, task_type)
    return true
  end
  local attempt, max_attempts, timeout, failures, suspect, expires, unknown, available, extra, idem
  local numbers = ''
  if redis.call('HLEN', record) ~= plain or not (own_queue and own_band) then  -- to look for ten in vain costs most
    attempt, max_attempts, timeout, failures, suspect, expires, unknown, available, extra, idem = unpack(redis.call(
      'HMGET', record, 'attempt', 'max_attempts', 'timeout', 'failures', 'suspect', 'expires', 'unknown', 'available',
      'extra', 'idem'))
    numbers = ' ' .. (attempt or '0') .. ' ' .. (max_attempts or '0') .. ' ' .. (timeout or '0') .. ' ' ..
      (failures or '0') .. ' ' .. (suspect or '0') .. ' ' .. (expires or '0') .. ' ' .. (unknown or '0') .. ' ' ..
      (available or '0')
  end
  local payload = redis.call('GET', key.payload(id))
  if not (v and payload and readable(task_type, seq, created, ' ' .. v .. numbers)) then
    remove_ticket(queue, band, entry)
    bury_unreadable(id, status, queue, band)
    return true
  end
  if expires and now_ms >= tonumber(expires) then
    remove_ticket(queue, band, entry)
    redis.call('HSET', record, 'status', 'expired', 'finished', text(now_ms))
    finish({ id = id, queue = queue, type = task_type, status = status, created = created, attempt = attempt,
      worker = worker, idem = idem }, 'expired')
    return true
  end
  if suspect and #claims > 0 then
    park(queue, band, entry)
    return false
  end
  seq, attempt = seq + 1, (attempt or 0) + 1
  local created_ms = math.floor(created / 1000)
  local own_attempts, own_timeout = policy(task_type)
  max_attempts, timeout = max_attempts or own_attempts, timeout or own_timeout
  if own_attempts then
    redis.call('HSET', record, 'status', 'running', 'seq', text(seq), 'attempt', text(attempt), 'worker', worker,
      'started', text(now_ms), 'max_attempts', max_attempts, 'timeout', timeout)
  else
    redis.call('HSET', record, 'status', 'running', 'seq', text(seq), 'attempt', text(attempt), 'worker', worker,
      'started', text(now_ms))
  end
  move(id, queue, 'queued', 'running', created)
  event('TASK_STARTED', id, queue, task_type, text(attempt), worker)
  count(queue, task_type, 'started')
  local claim = { id, seq, attempt, task_type, queue, band, max_attempts or '', timeout or '', payload,
    math.max(0, now_ms - (available or created_ms)), math.max(0, now_ms - created_ms) }
  if failures or suspect or unknown or extra then
    claim[12], claim[13], claim[14], claim[15] = failures or '0', suspect or '0', unknown or '', extra or ''
  end
  claims[#claims + 1] = claim
  left = left - 1
  return not suspect
end

local function take_parked(queue, band)
  --[[ Returns false when the claim must stop: a suspect, or as much as was asked for. ]]
  local stream = key.stream(queue, band)
  while left > 0 and looks > 0 do
    local waiting = redis.pcall('XPENDING', stream, WORKER_GROUP, '-', '+', math.min(left, looks), PARKED)
    if waiting.err or #waiting == 0 then
      redis.call('SREM', key.parked(queue), band)
      return true
    end
    for _, pending in ipairs(waiting) do
      local entry = redis.call('XCLAIM', stream, WORKER_GROUP, worker, 0, pending[1])[1]
      if not entry then  -- deleted under us: Redis 6.2 answers nil and keeps it pending, 7 drops it
        redis.call('XACK', stream, WORKER_GROUP, pending[1])
        absorbed, looks = absorbed + 1, looks - 1
      elseif not take(queue, band, entry[1], entry[2]) then
        return false
      end
    end
  end
  return false
end

local function read_new(queue, band)
  local stream = key.stream(queue, band)
  while left > 0 and looks > 0 do
    if band_length(queue, band) == 0 then return true end
    local wanted = math.min(left, looks)
    local reply = redis.pcall('XREADGROUP', 'GROUP', WORKER_GROUP, worker, 'COUNT', wanted, 'STREAMS', stream, '>')
    if reply and reply.err then  -- no group: a new stream, or one after a FLUSHALL or XGROUP DESTROY
      redis.call('XGROUP', 'CREATE', stream, WORKER_GROUP, '0')
      reply = redis.call('XREADGROUP', 'GROUP', WORKER_GROUP, worker, 'COUNT', wanted, 'STREAMS', stream, '>')
    end
    if not reply then return true end
    local entries, going_on = reply[1][2], true
    for _, entry in ipairs(entries) do
      if going_on then
        going_on = take(queue, band, entry[1], entry[2])
      else  -- read before the stop was known: it keeps its place
        park(queue, band, entry[1])
      end
    end
    if not going_on then return false end
    if #entries < wanted then return true end
  end
  return false
end

local function walk(queue)
  --[[ Returns false when the claim must stop. ]]
  if redis.call('EXISTS', key.paused(queue)) == 1 then return true end
  local has_parked = {}
  for _, band in ipairs(redis.call('SMEMBERS', key.parked(queue))) do has_parked[band] = true end
  for _, band in ipairs(bands) do
    if has_parked[band] and not take_parked(queue, band) then return false end
    if not read_new(queue, band) then return false end
  end
  return true
end

local stopped = false
for at = ITEMS, #ARGV, ITEM do
  if not walk(ARGV[at]) then stopped = true break end
end
write_index()
local more = 0
if stopped then  -- else all that can be claimed is: what is still queued waits for a newer worker, or for reconcile
  for at = ITEMS, #ARGV, ITEM do
    local queue = ARGV[at]
    if redis.call('ZCARD', key.index(queue, 'queued')) > 0 and redis.call('EXISTS', key.paused(queue)) == 0 then
      more = 1
      if ring ~= '1' then break end
      wake(queue)
    end
  end
end
write_journal()
if #claims > 0 then note_claim(worker, process, number) end
return { claims, more, absorbed, newer, 0 }
