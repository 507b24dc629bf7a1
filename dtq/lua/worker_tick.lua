--[[ worker_tick: all that a worker says and asks in a second, in one call
Heartbeat; renewal of the leases of what it holds, each fenced by seq; which of it was lost or is to be cancelled; the
leader's lock, taken when free and renewed when own; what an operator told this worker; whether something is overdue
that the leader should have done (looked at in this worker's queues).
lead: '1' to take part in leading. Returns {registered, leader, command, overdue, lost ids, cancelled ids}.
A repeat renews again and answers the same.
]]
--@include clock renew
--@args worker status queues lead lock_ms late_ms
--@items id claimed_seq

local record = key.worker(worker)
local keep = redis.call('HGET', record, 'keep')
if keep then
  redis.call('HSET', record, 'heartbeat', text(now_ms), 'status', status)
  redis.call('PEXPIRE', record, keep)
  redis.call('ZADD', key.workers(), text(now_ms + keep), worker)
end

local lost, cancelled = {}, {}
for at = ITEMS, #ARGV, ITEM do
  --@item at
  local state, seq, queue, band, entry, cancel = unpack(redis.call('HMGET', key.task(id), 'status', 'seq', 'queue',
    'priority', 'entry', 'cancel'))
  if state == 'running' and seq == claimed_seq then
    renew(key.stream(queue, band), entry, worker)
    if cancel == '1' then cancelled[#cancelled + 1] = id end
  else
    lost[#lost + 1] = id
  end
end

local leader = redis.call('GET', key.scheduler_lock())
if lead == '1' and (not leader or leader == worker) then
  redis.call('SET', key.scheduler_lock(), worker, 'PX', lock_ms)
  leader = worker
end

local function overdue()
  local head = redis.call('ZRANGE', key.schedule(), 0, 0, 'WITHSCORES')
  if head[2] and tonumber(head[2]) < now_ms - late_ms then return 1 end
  local longest = tonumber(redis.call('ZREVRANGE', key.leases(), 0, 0, 'WITHSCORES')[2] or 0)
  for queue in string.gmatch(queues, '[^,]+') do
    if longest > 0 and redis.call('ZCARD', key.index(queue, 'running')) > 0 then
      for band = 0, 9 do
        local stream = key.stream(queue, band)
        if redis.call('XLEN', stream) > 0 then
          local idle = redis.pcall('XPENDING', stream, WORKER_GROUP, 'IDLE', text(longest + late_ms), '-', '+', 1)
          if not idle.err and #idle > 0 and idle[1][2] ~= PARKED then return 1 end
        end
      end
    end
  end
  return 0
end

return { keep and 1 or 0, leader == worker and 1 or 0, redis.call('HGET', record, 'command') or '', overdue(), lost,
  cancelled }
