--[[ Whether a record is as dtq writes it. Looked at before the first write: a script that stumbles over a record that
something else has changed would leave half its work done, and would stumble again at every try. ]]

local function plain_type(task_type)
  --[[ Returns a task type that fits into a line of the journal, else nil. ]]
  return task_type and string.find(task_type, '^[%w_.:-]+$') and task_type or nil
end

local function readable(task_type, seq, created, numbers)
  --[[ numbers: the other numbers of the record, each with a space before it; '0' for what is not there. ]]
  if not (seq and created and plain_type(task_type)) then return nil end
  local all = seq .. ' ' .. created .. numbers .. ' '
  return string.find(all, '^%d[%d ]+$') and not string.find(all, '  ', 1, true)
end
