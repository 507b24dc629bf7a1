--[[ task_settle: gives back to its band what this consumer owns and does not hold: a claim whose reply was lost
A task whose cancellation was asked for ends `cancelled` instead. An entry that stands for nothing is removed.
number: of the last claim that was sent; one that is still on its way will find itself settled.
Works through one queue, and gives back at most `limit`: a repeat finds the rest.
Returns the number of tasks given back.
Events: TASK_QUEUED, TASK_CANCELLED.
]]
--@include clock journal index wake ticket finish release record claims
--@args worker queue limit process number
--@items held_id

local held, given_back = {}, 0
for at = ITEMS, #ARGV do held[ARGV[at]] = true end

local function give_back(band, entry, id)
  local record = key.task(id)
  local status, own_entry, seq, attempt, created, task_type, owner, cancel, idem = unpack(redis.call('HMGET', record,
    'status', 'entry', 'seq', 'attempt', 'created', 'type', 'worker', 'cancel', 'idem'))
  if status == 'queued' and own_entry == entry then
    park(queue, band, entry)
    wake(queue)
  elseif status ~= 'running' or own_entry ~= entry or owner ~= worker then
    remove_ticket(queue, band, entry)
  elseif readable(task_type, seq, created, ' ' .. (attempt or '!')) then  -- else it is left to the reclaim
    given_back = given_back + 1
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
  end
end

for band = 9, 0, -1 do
  local stream, from = key.stream(queue, band), '-'
  while from and given_back < tonumber(limit) do
    local owned = redis.pcall('XPENDING', stream, WORKER_GROUP, from, '+', 100, worker)
    if owned.err then break end
    for _, pending in ipairs(owned) do
      local entry = redis.call('XRANGE', stream, pending[1], pending[1])[1]
      local id = entry and ticket_task(entry[2])
      if not id then
        remove_ticket(queue, band, pending[1])
      elseif not held[id] then
        give_back(band, pending[1], id)
      end
    end
    from = #owned == 100 and '(' .. owned[100][1] or nil
  end
end
write_index()
write_journal()
note_claim(worker, process, number)
return given_back
