--[[ Wake tokens: for idle workers of a queue, and for the leader when something is due earlier than it knows. ]]
local woken = {}

local function wake(queue)
  if not woken[queue] then
    woken[queue] = true
    redis.call('XADD', key.wake(queue), 'MAXLEN', '~', WAKE_MAXLEN, '*', 't', '')
  end
end

local function schedule(task_id, due_ms)
  local head = redis.call('ZRANGE', key.schedule(), 0, 0, 'WITHSCORES')
  redis.call('ZADD', key.schedule(), due_ms, task_id)
  if not head[2] or tonumber(due_ms) < tonumber(head[2]) then
    redis.call('XADD', key.scheduler_wake(), 'MAXLEN', '~', WAKE_MAXLEN, '*', 't', '')
  end
end
