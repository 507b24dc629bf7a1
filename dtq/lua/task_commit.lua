--[[ task_commit: running -> succeeded | retrying | pending | dead_lettered | failed | cancelled: the outcomes of many
claims, each fenced by the seq that its claim was given. The fence is also the operation id: a claim has one outcome.
kind: succeed, retry, dead, snooze, unknown (a type that this worker does not know), cancelled
result: JSON, '' for none. details: what a usual success leaves out, with tabs between: result_state (too_large),
delay_ms, reason, error, history, max_attempts, disposition; '' for none at all.
A recorded cancellation wins over every outcome. Frees first: at maxmemory a script may write once it has freed.
A record that cannot be read becomes a dead letter: it must not hold up the outcomes of others.
Returns one status an item, '' where the lease was lost and nothing was written; a repeat gets the first answer.
Events: TASK_SUCCEEDED, TASK_RETRY_SCHEDULED, TASK_DEAD_LETTERED, TASK_FAILED, TASK_CANCELLED, TASK_QUEUED (snooze).
]]
--@include clock journal index wake ticket finish dead history record
--@args worker
--@items id claimed_seq kind duration result details

local FIELDS = { 'status', 'seq', 'queue', 'priority', 'entry', 'attempt', 'created', 'type', 'cancel', 'idem',
  'failures', 'started', 'error', 'unknown', 'worker' }
local tasks, spoilt, tickets, replies, first = {}, {}, {}, {}, {}

-- guards, and what frees memory: the tickets of a band go together
for at = ITEMS, #ARGV, ITEM do
  --@item at
  local status, seq, queue, band, entry, attempt, created, task_type, cancel, idem, failures, started, old_error,
    unknown, owner = unpack(redis.call('HMGET', key.task(id), unpack(FIELDS)))
  local ours = seq == claimed_seq and (not owner or owner == worker)  -- a server that lost writes gives a seq twice
  if first[id] and ours then
    replies[#replies + 1] = 'again'  -- a claim has one outcome, the first
  elseif status == 'running' and ours and not (queue and band and readable(task_type, seq, created,
    ' ' .. band .. ' ' .. (attempt or '!') .. ' ' .. (failures or '0') .. ' ' .. (started or '0') .. ' ' ..
    (unknown or '0'))) then
    first[id] = #replies + 1
    spoilt[at] = { status = status, queue = queue or 'default', band = band or '0', entry = entry }
    replies[#replies + 1] = DLQ_ENABLED == 1 and 'dead_lettered' or 'failed'
  elseif status == 'running' and ours then
    first[id] = #replies + 1
    tasks[at] = { id = id, queue = queue, type = task_type, status = status, created = created, attempt = attempt,
      worker = worker, idem = idem, cancel = cancel, failures = tonumber(failures or 0), started = started,
      had_error = old_error, unknown = unknown, seq = seq }
    local stream = key.stream(queue, band)
    local list = tickets[stream]
    if not list then list = {} tickets[stream] = list end
    if names_entry(entry) then list[#list + 1] = entry end
    replies[#replies + 1] = 'open'  -- until it is written, below
  elseif status and ours then
    replies[#replies + 1] = status  -- this very claim's outcome is recorded: its reply was lost
  else
    replies[#replies + 1] = ''
  end
end
for stream, entries in pairs(tickets) do
  if #entries > 0 then
    redis.pcall('XACK', stream, WORKER_GROUP, unpack(entries))  -- it may be no stream any more
    redis.pcall('XDEL', stream, unpack(entries))
  end
end

local function later(task, status, delay_ms, ...)
  local due = text(now_ms + delay_ms)
  redis.call('HDEL', key.task(task.id), 'worker', 'entry', 'alone', 'progress', 'unknown')
  redis.call('HSET', key.task(task.id), 'status', status, 'available', due, ...)
  schedule(task.id, due)
  move(task.id, task.queue, 'running', status, task.created)
  return status
end

local function succeed(task, result, too_large, duration)
  local record = key.task(task.id)
  local result_state = result ~= '' and 'stored' or too_large
  if result_state == '' then
    redis.call('HSET', record, 'status', 'succeeded', 'finished', text(now_ms), 'duration', duration)
  else
    redis.call('HSET', record, 'status', 'succeeded', 'finished', text(now_ms), 'duration', duration, 'result',
      result_state)
  end
  if task.had_error then redis.call('HDEL', record, 'error') end
  if result_state == 'stored' then redis.call('SET', key.result(task.id), result, 'PX', text(RESULT_KEEP_MS)) end
  task.first_try = task.seq == '2'  -- one for the submission, one for this claim
  finish(task, 'succeeded')
  return 'succeeded'
end

local function cancelled(task, duration)
  count(task.queue, task.type, 'attempt_cancelled')
  remember(task.id, task.attempt, worker, task.started, '"o":"cancelled","d":' .. duration)
  redis.call('HSET', key.task(task.id), 'status', 'cancelled', 'finished', text(now_ms))
  finish(task, 'cancelled')
  return 'cancelled'
end

local function fail(task, error, history, disposition)
  count(task.queue, task.type, 'attempt_' .. disposition)
  redis.call('HSET', key.task(task.id), 'failures', task.failures + 1, 'error', error)
  remember(task.id, task.attempt, worker, task.started, history)
  task.error = error
end

local known_here = {}

local function somebody_knows(task)
  --[[ Whether a living worker of the queue has published a handler: in a rolling deploy a task may meet old workers many
  times before it meets a new one. ]]
  local found = known_here[task.type .. ' ' .. task.queue]
  if found == nil then
    found = false
    for _, name in ipairs(redis.call('ZRANGE', key.workers(), 0, 999)) do
      local policy, queues = unpack(redis.call('HMGET', key.worker(name), 'policy:' .. task.type, 'queues'))
      if policy and string.find(',' .. (queues or '') .. ',', ',' .. task.queue .. ',', 1, true) then
        found = true
        break
      end
    end
    known_here[task.type .. ' ' .. task.queue] = found
  end
  return found
end

local function put_off_unknown(task)
  --[[ Workers that know the type may be on their way; after the grace nobody is expected any more. ]]
  local since = tonumber(task.unknown or now_ms)
  if now_ms - since >= UNKNOWN_GRACE_MS then
    if not somebody_knows(task) then return nil end
    since = now_ms
  end
  event('TASK_QUEUED', task.id, task.queue, task.type, task.attempt, worker, 'unknown type, put off')
  count(task.queue, task.type, 'unknown')
  return later(task, 'pending', 1000, 'unknown', text(since), 'attempt', task.attempt - 1)
end

for at, found in pairs(spoilt) do
  remove_ticket(found.queue, found.band, found.entry)
  bury_unreadable(ARGV[at], found.status, found.queue, found.band)
end

local position = 0
for at = ITEMS, #ARGV, ITEM do
  position = position + 1
  local task = tasks[at]
  if replies[position] == 'again' then
    replies[position] = replies[first[ARGV[at]]]
  elseif task then
    --@item at
    local reply
    local result_state, delay_ms, reason, error, history, max_attempts, disposition = '', '', '', '', '', '', ''
    if details ~= '' then
      result_state, delay_ms, reason, error, history, max_attempts, disposition =
        string.match(details, '^(.-)\t(.-)\t(.-)\t(.-)\t(.-)\t(.-)\t(.-)$')
    end
    if max_attempts ~= '' then redis.call('HSET', key.task(id), 'max_attempts', max_attempts) end
    if task.cancel == '1' or kind == 'cancelled' then
      reply = cancelled(task, duration)
    elseif kind == 'succeed' then
      reply = succeed(task, result, result_state, duration)
    elseif kind == 'snooze' then
      event('TASK_QUEUED', id, task.queue, task.type, task.attempt, worker, 'snoozed')
      count(task.queue, task.type, 'snoozed')
      reply = later(task, 'pending', tonumber(delay_ms), 'attempt', task.attempt - 1)
    elseif kind == 'retry' then
      fail(task, error, history, disposition)
      event('TASK_RETRY_SCHEDULED', id, task.queue, task.type, task.attempt, worker, delay_ms)
      count(task.queue, task.type, 'retried')
      reply = later(task, 'retrying', tonumber(delay_ms))
    else
      if kind == 'unknown' then reply = put_off_unknown(task) end
      if not reply then
        fail(task, error, history, disposition)
        reply = bury(task, reason)
      end
    end
    replies[position] = reply
  end
end
write_index()
write_journal()
return replies
