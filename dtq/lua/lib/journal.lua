--[[ Events and counters. Both are gathered while a script works and written once at its end: the events of a script
are packed into one entry, a line each (kind, task, queue, type, attempt, worker, detail), and a counter moves once. ]]
--@include clock
local lines, tallies = {}, {}
local beyond = '_other'  -- no queue can be called so

local function event(kind, task_id, queue, task_type, attempt, worker, detail)
  lines[#lines + 1] = kind .. '\t' .. task_id .. '\t' .. queue .. '\t' .. task_type .. '\t' .. attempt .. '\t' ..
    worker .. '\t' .. (detail or '')
end

local function count(queue, task_type, what)
  local fields = tallies[queue]
  if not fields then fields = {} tallies[queue] = fields end
  local field = task_type .. ':' .. what
  fields[field] = (fields[field] or 0) + 1
end

local function counted_as(queue, task_type)
  --[[ Under which names a counter that is new is kept: first come, first served. Names from outside must not grow the
  counters, and the metrics made of them, for ever. ]]
  local pair = queue .. ' ' .. task_type
  if redis.call('SISMEMBER', key.counted_types(), pair) == 1 then return queue, task_type end
  if redis.call('SISMEMBER', key.counted_queues(), queue) == 0 then
    if redis.call('SCARD', key.counted_queues()) >= MAX_COUNTED_QUEUES then return beyond, beyond end
    redis.call('SADD', key.counted_queues(), queue)
  end
  if redis.call('SCARD', key.counted_types()) >= MAX_COUNTED_TYPES then return queue, beyond end
  redis.call('SADD', key.counted_types(), pair)
  return queue, task_type
end

local function add_to_totals(queue, field, number)
  --[[ Returns the field that the minute is to use. ]]
  local totals = key.totals(queue)
  if redis.call('HINCRBY', totals, field, number) > number then return field end
  local task_type, what = string.match(field, '^(.*):([^:]+)$')
  local own_queue, own_type = counted_as(queue, task_type)
  local own_field = own_type .. ':' .. what
  if own_queue ~= queue or own_type ~= task_type then
    redis.call('HDEL', totals, field)
    redis.call('HINCRBY', key.totals(own_queue), own_field, number)
  end
  return own_field
end

local function write_journal()
  local minute_number = math.floor(now_ms / 60000)
  for queue, fields in pairs(tallies) do
    local minute, is_new = key.minute(queue, minute_number), false
    for field, number in pairs(fields) do
      local sum = redis.call('HINCRBY', minute, add_to_totals(queue, field, number), number)
      is_new = is_new or sum == number
    end
    if is_new then redis.call('PEXPIRE', minute, MINUTE_KEEP) end
  end
  if #lines > 0 then
    redis.call('XADD', key.events(), 'MAXLEN', '~', EVENTS_MAXLEN, '*', 'e', table.concat(lines, '\n'))
  end
end
