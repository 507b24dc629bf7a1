--[[ task_reclaim: running -> queued (or dead_lettered, cancelled), for leases that ended: a task keeps its place, its lost
attempt goes into its history, and it is a suspect from now on. A suspect whose written start says that nothing ran
beside it has crashed its worker: counted, and poison after MAX_CRASHES. One that ran beside others is only isolated next.
Nothing is started here. The longest lease that any registered worker has published decides, never the caller's own.
late_ms: only what is that late already. quiet_ms: for how long Redis has been known to be well: within a renewal
interval of an outage nothing is taken, since owners could not renew either.
Works through the queues in turn; at most `limit` entries. Returns {reclaimed, deleted, looked at}; a repeat finds the rest.
Events: TASK_QUEUED, TASK_DEAD_LETTERED, TASK_CANCELLED, TASK_DUPLICATE_ABSORBED.
]]
--@include clock journal index wake ticket release finish dead history record band
--@args limit late_ms quiet_ms
--@items queue

local longest = tonumber(redis.call('ZREVRANGE', key.leases(), 0, 0, 'WITHSCORES')[2] or 0)
if longest == 0 or tonumber(quiet_ms) < longest / 3 then return { 0, 0, 0 } end
local min_idle, left = text(longest + late_ms), tonumber(limit)
local reclaimed, deleted = 0, 0
local queue  -- the one that is looked at

local function suspicion(suspect, alone, crashes)
  --[[ Returns the next degree of suspicion and the number of crashes. ]]
  if suspect == 0 then return 1, crashes end
  if alone == '1' then return suspect, crashes + 1 end
  if alone == '0' then return 2, crashes end
  return suspect, crashes  -- never started
end

local function reclaim(id, band, entry)
  --[[ Returns false for what is left alone: a newer worker's business. ]]
  local record = key.task(id)
  local v, status, own_entry, seq, attempt, created, task_type, cancel, idem, suspect, alone, crashes, started, owner =
    unpack(redis.call('HMGET', record, 'v', 'status', 'entry', 'seq', 'attempt', 'created', 'type', 'cancel', 'idem',
      'suspect', 'alone', 'crashes', 'started', 'worker'))
  if v and tonumber(v) and tonumber(v) > SCHEMA_VERSION then return false end
  if own_entry == entry and status == 'queued' then
    park(queue, band, entry)
    wake(queue)
    return true
  end
  if own_entry ~= entry or status ~= 'running' then
    remove_ticket(queue, band, entry)
    event('TASK_DUPLICATE_ABSORBED', id, queue, plain_type(task_type) or '', '0', owner or '')
    count(queue, plain_type(task_type) or '_unknown', 'absorbed')
    return true
  end
  reclaimed = reclaimed + 1
  if not readable(task_type, seq, created, ' ' .. (attempt or '!') .. ' ' .. (suspect or '0') .. ' ' ..
    (crashes or '0') .. ' ' .. (started or '0'))
  then
    remove_ticket(queue, band, entry)
    bury_unreadable(id, status, queue, tostring(band))
    return true
  end
  local task = { id = id, queue = queue, type = task_type, status = status, created = created, attempt = attempt,
    worker = owner, idem = idem }
  local degree, deaths = suspicion(tonumber(suspect or 0), alone, tonumber(crashes or 0))
  local poison = deaths >= MAX_CRASHES
  if cancel == '1' or poison then
    remove_ticket(queue, band, entry)
    redis.call('HSET', record, 'seq', seq + 1, 'suspect', degree, 'crashes', deaths)  -- the owner's fence is gone
  else
    -- one more than release gives back: this start is counted, it is in the history
    release(id, queue, band, entry, tonumber(seq), tonumber(attempt) + 1, created)
    redis.call('HSET', record, 'suspect', degree, 'crashes', deaths)
    event('TASK_QUEUED', id, queue, task_type, attempt, owner or '', 'reclaimed')
    count(queue, task_type, 'reclaimed')
  end
  count(queue, task_type, 'attempt_lost')
  remember(id, attempt, owner, started, '"o":"lost","m":"the worker was lost: its lease ended"')
  if cancel == '1' then
    redis.call('HSET', record, 'status', 'cancelled', 'finished', text(now_ms))
    finish(task, 'cancelled', 'the worker was lost')
  elseif poison then
    task.error = '{"class":"WorkerCrashed","message":"' .. deaths .. ' workers died while they ran this task"}'
    redis.call('HSET', record, 'error', task.error)
    bury(task, 'worker_crashed')
  end
  return true
end

local function settle(band, entry)
  --[[ One entry whose lease ended. ]]
  local found = redis.call('XRANGE', key.stream(queue, band), entry, entry)[1]
  local id = found and ticket_task(found[2])
  if not id then
    remove_ticket(queue, band, entry)
    deleted = deleted + 1
    count(queue, '_unknown', 'claim_deleted')
  elseif not reclaim(id, band, entry) then
    return
  end
  left = left - 1
end

local function take_from(consumer, band)
  local stream, from, before = key.stream(queue, band), '-', left
  while left > 0 and from do
    local idle = redis.call('XPENDING', stream, WORKER_GROUP, 'IDLE', min_idle, from, '+', left, consumer)
    for _, pending in ipairs(idle) do settle(band, pending[1]) end
    from = #idle > 0 and '(' .. idle[#idle][1] or nil
  end
  if left < before and redis.call('EXISTS', key.worker(consumer)) == 0
    and #redis.call('XPENDING', stream, WORKER_GROUP, '-', '+', 1, consumer) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', stream, WORKER_GROUP, consumer)  -- of a worker that nobody remembers
  end
end

local function take_up(consumer, band)
  --[[ What older workers have set aside, since it was too new for them: it waits like all others from now on. ]]
  local stream = key.stream(queue, band)
  local aside = redis.call('XPENDING', stream, WORKER_GROUP, '-', '+', left, consumer)
  for _, pending in ipairs(aside) do park(queue, band, pending[1]) end
  if #aside > 0 then wake(queue) end
  left = left - #aside
  if #redis.call('XPENDING', stream, WORKER_GROUP, '-', '+', 1, consumer) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', stream, WORKER_GROUP, consumer)
  end
end

local function look_through(band)
  local stream = key.stream(queue, band)
  local pending = band_length(queue, band) > 0 and redis.pcall('XPENDING', stream, WORKER_GROUP)
  if pending and not pending.err and pending[1] > 0 then
    for _, consumer in ipairs(pending[4]) do
      local name = consumer[1]
      if name == PARKED then
        if redis.call('SISMEMBER', key.parked(queue), band) == 0 then redis.call('SADD', key.parked(queue), band) end
      elseif string.sub(name, 1, #PARKED) ~= PARKED then
        take_from(name, band)
      elseif left > 0 and readable_now(name) then
        take_up(name, band)
      end
    end
  end
end

for at = ITEMS, #ARGV, ITEM do
  if left <= 0 then break end
  queue = ARGV[at]
  for band = 9, 0, -1 do look_through(band) end
end
write_index()
write_journal()
return { reclaimed, deleted, limit - left }
