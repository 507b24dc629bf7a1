--[[ worker_tick: all that a worker says and asks in a second, in one call
Heartbeat; renewal of the leases of what it holds, each fenced by seq; which of it was lost or is to be cancelled; the
leader's lock, taken when free and renewed when own; what an operator told this worker; whether something is overdue
that the leader should have done (looked at in this worker's queues). The wake streams of its queues are kept alive.
For the leader itself all queues are looked at, for what is due now, and its scheduler is rung for.
lead: '1' to take part in leading.
process: tells this worker's start from that of another one with the same name, whose record is left alone.
Returns {registered (2: as another process), leader, command, overdue, lost ids, cancelled ids, whether anything runs in
the queues looked at}.
A repeat renews again and answers the same.
]]
--@include clock renew band
--@args worker process status queues lead lock_ms late_ms
--@items id claimed_seq

local record = key.worker(worker)
local keep, owner = unpack(redis.call('HMGET', record, 'keep', 'process'))
local replaced = keep and owner and owner ~= process
if not replaced then
  redis.call('PEXPIRE', record, keep or 1)  -- first, even in vain: at maxmemory only what begins without a need may go on
end
if keep and not replaced then
  redis.call('HSET', record, 'heartbeat', text(now_ms), 'status', status)
  redis.call('ZADD', key.workers(), text(now_ms + keep), worker)
end

local lost, cancelled = {}, {}
for at = ITEMS, #ARGV, ITEM do
  --@item at
  local state, seq, queue, band, entry, cancel, owner = unpack(redis.call('HMGET', key.task(id), 'status', 'seq',
    'queue', 'priority', 'entry', 'cancel', 'worker'))
  if state == 'running' and seq == claimed_seq and owner == worker and queue and band then
    if not renew(key.stream(queue, band), entry, worker) then
      redis.call('HSET', key.task(id), 'held', text(now_ms))  -- its pending entry was deleted: reconcile looks here
    end
    if cancel == '1' then cancelled[#cancelled + 1] = id end
  else
    lost[#lost + 1] = id
  end
end

local leader = redis.call('GET', key.scheduler_lock())
if lead == '1' and not replaced and (not leader or leader == worker) then
  redis.call('SET', key.scheduler_lock(), worker, 'PX', lock_ms)
  leader = worker
end

for queue in string.gmatch(queues, '[^,]+') do redis.call('PEXPIRE', key.wake(queue), WAKE_KEEP) end

local function ended_lease(stream, min_idle)
  --[[ Whether a worker holds an entry for so long; what is parked or set aside may stand there for ever. ]]
  local idle = redis.pcall('XPENDING', stream, WORKER_GROUP, 'IDLE', min_idle, '-', '+', 1)
  if idle.err or #idle == 0 then return false end
  if string.sub(idle[1][2], 1, #PARKED) ~= PARKED then return true end
  for _, consumer in ipairs(redis.call('XPENDING', stream, WORKER_GROUP)[4]) do
    if string.sub(consumer[1], 1, #PARKED) ~= PARKED
      and #redis.call('XPENDING', stream, WORKER_GROUP, 'IDLE', min_idle, '-', '+', 1, consumer[1]) > 0 then
      return true
    end
  end
  return false
end

local leads = leader == worker and not replaced
local looked_at = leads and redis.call('ZRANGE', key.queues(), 0, -1) or {}
if not leads then
  for queue in string.gmatch(queues, '[^,]+') do looked_at[#looked_at + 1] = queue end
end
local busy = {}
for _, queue in ipairs(looked_at) do
  if redis.call('ZCARD', key.index(queue, 'running')) > 0 then busy[#busy + 1] = queue end
end

local function overdue()
  local head = redis.call('ZRANGE', key.schedule(), 0, 0, 'WITHSCORES')
  if head[2] and tonumber(head[2]) < now_ms - late_ms then return 1 end
  local longest = tonumber(redis.call('ZREVRANGE', key.leases(), 0, 0, 'WITHSCORES')[2] or 0)
  local min_idle = text(longest + (leads and 0 or late_ms))
  for _, queue in ipairs(longest > 0 and busy or {}) do
    for band = 0, 9 do
      local stream = key.stream(queue, band)
      if band_length(queue, band) > 0 and ended_lease(stream, min_idle) then return 1 end
    end
  end
  return 0
end

local late = overdue()
if leads and late == 1 then
  redis.call('XADD', key.scheduler_wake(), 'MAXLEN', '~', WAKE_MAXLEN, '*', 't', '')
end
local command = not replaced and redis.call('HGET', record, 'command') or ''
return { replaced and 2 or keep and 1 or 0, leads and 1 or 0, command, late, lost, cancelled, #busy > 0 and 1 or 0 }
