--[[ Tickets: an entry in a band that stands for one task. The hash names its entry, so a second ticket of a task, a
forged one and one whose task has moved on are told from the real one without looking further. ]]
--@include clock

local function add_ticket(task_id, queue, band, seq, attempt, call)
  --[[ call: redis.pcall for who goes on without it; what fails is then returned. ]]
  return (call or redis.call)('XADD', key.stream(queue, band), '*', 'id', task_id, 'seq', text(seq), 'attempt',
    text(attempt))
end

local function names_entry(entry)
  return entry and string.find(entry, '^%d+%-%d+$')
end

local function remove_ticket(queue, band, entry)
  --[[ entry: as a record tells it, which something else may have changed. ]]
  if not names_entry(entry) then return end
  local stream = key.stream(queue, band)
  redis.pcall('XACK', stream, WORKER_GROUP, entry)  -- it may be no stream any more
  redis.pcall('XDEL', stream, entry)
end

local function ticket_task(fields)
  --[[ Returns the task's id, nil for a ticket that names none. ]]
  for at = 1, #fields, 2 do
    if fields[at] == 'id' then return string.match(fields[at + 1], '^%w+$') end
  end
  return nil
end

local function readable_now(consumer)
  --[[ Whether a name is that of what an older worker has set aside for one like this. ]]
  local version = string.match(consumer, '^' .. PARKED .. '%-v(%d+)$')
  return version and tonumber(version) <= SCHEMA_VERSION
end

local function park(queue, band, entry)
  --[[ Keeps its place in front of what was never claimed: claims take the parked entries of a band first. ]]
  redis.call('XCLAIM', key.stream(queue, band), WORKER_GROUP, PARKED, 0, entry, 'JUSTID')
  redis.call('SADD', key.parked(queue), band)
end
