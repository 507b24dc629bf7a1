--[[ A running task waits again at the front of its band: its ticket goes to the parked consumer and keeps its place. ]]
--@include clock journal index wake ticket

local function release(id, queue, band, entry, seq, attempt, created)
  --[[ The start is not counted: the attempt number is given back. ]]
  local record = key.task(id)
  local moved = redis.pcall('XCLAIM', key.stream(queue, band), WORKER_GROUP, PARKED, 0, entry or '', 'JUSTID')
  if moved.err or #moved == 0 then
    -- the ticket is gone (its stream was deleted): a new one, or the task would wait for ever
    remove_ticket(queue, band, entry)
    entry = add_ticket(id, queue, band, seq + 1, attempt)
  else
    redis.call('SADD', key.parked(queue), band)
  end
  redis.call('HSET', record, 'status', 'queued', 'seq', seq + 1, 'attempt', attempt - 1, 'entry', entry)
  redis.call('HDEL', record, 'worker', 'started', 'alone', 'progress')
  move(id, queue, 'running', 'queued', created)
  wake(queue)
end
