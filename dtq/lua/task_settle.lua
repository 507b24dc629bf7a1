--[[ task_settle: gives back to its band what this consumer owns and does not hold: a claim whose reply was lost
Works through one queue; at most 1 000 entries a call. An entry that stands for nothing is removed.
Returns the number of tasks given back. A repeat finds nothing left and returns 0.
]]
--@include clock journal index wake ticket release
--@args worker queue
--@items held_id

local held, given_back = {}, 0
for at = ITEMS, #ARGV do held[ARGV[at]] = true end
for band = 9, 0, -1 do
  local stream = key.stream(queue, band)
  local owned = redis.pcall('XPENDING', stream, WORKER_GROUP, '-', '+', 100, worker)
  if not owned.err then
    for _, pending in ipairs(owned) do
      local entry = redis.call('XRANGE', stream, pending[1], pending[1])[1]
      local id = entry and ticket_task(entry[2])
      if not id then
        remove_ticket(queue, band, pending[1])
      elseif not held[id] then
        local status, own_entry, seq, attempt, created, task_type, owner = unpack(redis.call('HMGET', key.task(id),
          'status', 'entry', 'seq', 'attempt', 'created', 'type', 'worker'))
        if status == 'running' and own_entry == pending[1] and owner == worker then
          release(id, queue, band, pending[1], tonumber(seq), tonumber(attempt), created)
          event('TASK_QUEUED', id, queue, task_type, attempt, worker, 'handed back')
          count(queue, task_type, 'handed_back')
          given_back = given_back + 1
        elseif status == 'queued' and own_entry == pending[1] then
          park(queue, band, pending[1])
          wake(queue)
        else
          remove_ticket(queue, band, pending[1])
        end
      end
    end
  end
end
write_index()
write_journal()
return given_back
