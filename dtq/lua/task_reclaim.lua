--[[ task_reclaim: running -> queued (or dead_lettered, cancelled), for leases that ended: a task keeps its place, its lost
attempt goes into its history, and it is a suspect from now on. A suspect whose written start says that nothing ran
beside it has crashed its worker: counted, and poison after MAX_CRASHES. One that ran beside others is only isolated next.
Nothing is started here. The longest lease that any registered worker has published decides, never the caller's own.
late_ms: only what is that late already. quiet_ms: for how long Redis has been known to be well: within a renewal
interval of an outage nothing is taken, since owners could not renew either.
Works through one queue; at most `limit` tasks. Returns {reclaimed, deleted}; a repeat finds the rest.
Events: TASK_QUEUED, TASK_DEAD_LETTERED, TASK_CANCELLED, TASK_DUPLICATE_ABSORBED.
]]
--@include clock journal index wake ticket release finish dead history
--@args queue limit late_ms quiet_ms

local longest = tonumber(redis.call('ZREVRANGE', key.leases(), 0, 0, 'WITHSCORES')[2] or 0)
if longest == 0 or tonumber(quiet_ms) < longest / 3 then return { 0, 0 } end
if redis.call('ZCARD', key.index(queue, 'running')) == 0 then return { 0, 0 } end
local reclaimed, deleted = 0, 0

local function suspicion(suspect, alone, crashes)
  --[[ Returns the next degree of suspicion and the number of crashes. ]]
  if suspect == 0 then return 1, crashes end
  if alone == '1' then return suspect, crashes + 1 end
  if alone == '0' then return 2, crashes end
  return suspect, crashes  -- never started
end

local function reclaim(id, band, entry)
  local record = key.task(id)
  local status, own_entry, seq, attempt, created, task_type, cancel, idem, suspect, alone, crashes, started, owner =
    unpack(redis.call('HMGET', record, 'status', 'entry', 'seq', 'attempt', 'created', 'type', 'cancel', 'idem',
      'suspect', 'alone', 'crashes', 'started', 'worker'))
  if own_entry == entry and status == 'queued' then
    park(queue, band, entry)
    wake(queue)
    return
  elseif own_entry ~= entry or status ~= 'running' then
    remove_ticket(queue, band, entry)
    event('TASK_DUPLICATE_ABSORBED', id, queue, task_type or '', attempt or '0', owner or '')
    count(queue, task_type or '_unknown', 'absorbed')
    return
  end
  reclaimed = reclaimed + 1
  remember(id, attempt, owner, started, '"o":"lost","m":"the worker was lost: its lease ended"')
  local task = { id = id, queue = queue, type = task_type, status = status, created = created, attempt = attempt,
    worker = owner, idem = idem }
  if cancel == '1' then
    remove_ticket(queue, band, entry)
    redis.call('HSET', record, 'status', 'cancelled', 'finished', text(now_ms))
    finish(task, 'cancelled', 'the worker was lost')
    return
  end
  local degree, deaths = suspicion(tonumber(suspect or 0), alone, tonumber(crashes or 0))
  redis.call('HSET', record, 'suspect', degree, 'crashes', deaths)
  if deaths >= MAX_CRASHES then
    remove_ticket(queue, band, entry)
    task.error = '{"class":"WorkerCrashed","message":"' .. deaths .. ' workers died while they ran this task"}'
    redis.call('HSET', record, 'error', task.error)
    bury(task, 'worker_crashed')
    return
  end
  -- one more than release gives back: this start is counted, it is in the history
  release(id, queue, band, entry, tonumber(seq), tonumber(attempt) + 1, created)
  event('TASK_QUEUED', id, queue, task_type, attempt, owner or '', 'reclaimed')
  count(queue, task_type, 'reclaimed')
end

local min_idle = text(longest + late_ms)
for band = 9, 0, -1 do
  local stream, from = key.stream(queue, band), '-'
  while reclaimed < tonumber(limit) and from do
    local idle = redis.pcall('XPENDING', stream, WORKER_GROUP, 'IDLE', min_idle, from, '+', 100)
    if idle.err or #idle == 0 then break end
    for _, pending in ipairs(idle) do
      if pending[2] == PARKED then
        redis.call('SADD', key.parked(queue), band)
      elseif string.sub(pending[2], 1, #PARKED + 2) ~= PARKED .. '-v' and reclaimed < tonumber(limit) then
        local entry = redis.call('XRANGE', stream, pending[1], pending[1])[1]
        local id = entry and ticket_task(entry[2])
        if id then
          reclaim(id, band, pending[1])
        else
          remove_ticket(queue, band, pending[1])
          deleted = deleted + 1
          count(queue, '_unknown', 'claim_deleted')
        end
      end
    end
    from = #idle == 100 and '(' .. idle[100][1] or nil
  end
end
write_index()
write_journal()
return { reclaimed, deleted }
