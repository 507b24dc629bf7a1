--[[ The end of a dead letter by an operator's decision: its entry goes, its task stays for the
retention: failed, as after an eviction, and marked. ]]
--@include clock journal index finish record

local function discard(id, operation_id)
  --[[ Returns a code of `task_discard`, and the status where it is wrong. ]]
  local record = key.task(id)
  local v, status, queue, created, task_type, dead, attempt, operation = unpack(redis.call('HMGET', record, 'v',
    'status', 'queue', 'created', 'type', 'dead', 'attempt', 'operation'))
  if v and tonumber(v) and tonumber(v) > SCHEMA_VERSION then return 'NEWER' end
  if not status then return 'UNKNOWN' end
  if operation == operation_id then return 'AGAIN' end
  if status ~= 'dead_lettered' then return 'WRONG_STATE', status end
  if not (dead and queue and readable(task_type, '1', created, ' ' .. (attempt or '0'))) then return 'UNDECODABLE' end
  redis.pcall('XDEL', key.dead_letter(), dead)
  redis.call('HDEL', record, 'dead')
  redis.call('HSET', record, 'status', 'failed', 'discarded', '1', 'operation', operation_id)
  move(id, queue, 'dead_lettered', 'failed', created)
  keep_for_retention(id, queue, 'failed')
  event('DEAD_LETTER_DISCARDED', id, queue, task_type, attempt or '0', '')
  count(queue, task_type, 'discarded')
  return 'DISCARDED'
end
