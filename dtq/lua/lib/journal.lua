--[[ Events and counters. Both are gathered while a script works and written once at its end: the events of a script
are packed into one entry, a line each (kind, task, queue, type, attempt, worker, detail), and a counter moves once. ]]
--@include clock
local lines, tallies = {}, {}

local function event(kind, task_id, queue, task_type, attempt, worker, detail)
  lines[#lines + 1] = table.concat({ kind, task_id, queue, task_type, attempt, worker, detail or '' }, '\t')
end

local function count(queue, task_type, what)
  local fields = tallies[queue]
  if not fields then fields = {} tallies[queue] = fields end
  local field = task_type .. ':' .. what
  fields[field] = (fields[field] or 0) + 1
end

local function write_journal()
  local minute_number = math.floor(now_ms / 60000)
  for queue, fields in pairs(tallies) do
    local totals, minute = key.totals(queue), key.minute(queue, minute_number)
    for field, number in pairs(fields) do
      if redis.call('HINCRBY', totals, field, number) == number and redis.call('HLEN', totals) > MAX_COUNTERS then
        redis.call('HDEL', totals, field)  -- one type too many: names from outside must not grow a hash for ever
        field = '_other' .. string.match(field, ':[^:]+$')
        redis.call('HINCRBY', totals, field, number)
      end
      redis.call('HINCRBY', minute, field, number)
    end
    redis.call('PEXPIRE', minute, MINUTE_KEEP)
  end
  if #lines > 0 then
    redis.call('XADD', key.events(), 'MAXLEN', '~', EVENTS_MAXLEN, '*', 'e', table.concat(lines, '\n'))
  end
end
