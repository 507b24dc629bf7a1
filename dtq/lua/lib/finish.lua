--[[ The end of a task: lifetimes begin, the idempotency record starts to age. A dead letter stays while its entry
does, so it has no lifetime yet. The finished index tells the leader what to remove, in the order of the ends. ]]
--@include clock journal index

local ENDING = { succeeded = 'TASK_SUCCEEDED', failed = 'TASK_FAILED', cancelled = 'TASK_CANCELLED',
  expired = 'TASK_EXPIRED', dead_lettered = 'TASK_DEAD_LETTERED' }

local function keep_for_retention(task_id, queue, status, no_history)
  put(key.finished(), text(now_ms), task_id .. ' ' .. status .. ' ' .. queue)
  local keep_ms = text(KEEP_MS)
  redis.call('PEXPIRE', key.task(task_id), keep_ms)
  redis.call('PEXPIRE', key.payload(task_id), keep_ms)
  if not no_history then redis.call('PEXPIRE', key.attempts(task_id), keep_ms) end
end

local function age_idempotency(task_id, scope)
  if scope then
    local record = key.idempotency(scope)
    if redis.call('HGET', record, 'task') == task_id then
      redis.call('HSET', record, 'state', 'done')
      redis.call('PEXPIRE', record, IDEM_TTL_MS)
    end
  end
end

local function finish(task, status, detail)
  --[[ task: id, queue, type, status, created, attempt, worker, idem, first_try: nothing was ever written into its
  history. The caller has written the hash. ]]
  move(task.id, task.queue, task.status, status, task.created)
  age_idempotency(task.id, task.idem)
  event(ENDING[status], task.id, task.queue, task.type, task.attempt or '0', task.worker or '', detail)
  count(task.queue, task.type, status)
  if status ~= 'dead_lettered' then keep_for_retention(task.id, task.queue, status, task.first_try) end
end
