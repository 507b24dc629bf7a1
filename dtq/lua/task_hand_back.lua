--[[ task_hand_back: running -> queued, at the front of its band, not counted as an attempt
A task whose cancellation was asked for ends `cancelled` instead.
Returns one code an item: 1 handed back or cancelled, 0 lost (another worker's, or already recorded: a repeat is 1 when
nobody has taken it since).
Events: TASK_QUEUED, TASK_CANCELLED.
]]
--@include clock journal index wake ticket finish release record
--@args worker
--@items id claimed_seq

local codes = {}
for at = ITEMS, #ARGV, ITEM do
  --@item at
  local record = key.task(id)
  local status, seq, queue, band, entry, attempt, created, task_type, cancel, idem, owner = unpack(redis.call(
    'HMGET', record, 'status', 'seq', 'queue', 'priority', 'entry', 'attempt', 'created', 'type', 'cancel', 'idem',
    'worker'))
  local code = 0
  if status == 'running' and seq == claimed_seq and owner == worker and queue and band
    and readable(task_type, seq, created, ' ' .. (attempt or '!')) then  -- else it is left to the reclaim
    if cancel == '1' then
      remove_ticket(queue, band, entry)
      redis.call('HSET', record, 'status', 'cancelled', 'finished', text(now_ms))
      finish({ id = id, queue = queue, type = task_type, status = status, created = created, attempt = attempt,
        worker = worker, idem = idem }, 'cancelled')
    else
      release(id, queue, band, entry, tonumber(seq), tonumber(attempt), created)
      event('TASK_QUEUED', id, queue, task_type, attempt, worker, 'handed back')
      count(queue, task_type, 'handed_back')
    end
    code = 1
  elseif (status == 'queued' and seq == tostring(claimed_seq + 1)) or (status == 'cancelled' and seq == claimed_seq) then
    code = 1
  end
  codes[#codes + 1] = code
end
write_index()
write_journal()
return codes
