--[[ Whether a record is as dtq writes it. Looked at before the first write: a script that stumbles over a record that
something else has changed would leave half its work done, and would stumble again at every try. ]]

local function plain_type(task_type)
  --[[ Returns a task type that fits into a line of the journal, else nil. ]]
  return task_type and string.find(task_type, '^[%w_.:-]+$') and task_type or nil
end

local function readable(task_type, seq, created, numbers)
  --[[ numbers: the other numbers of the record, those that are there, one after the other. ]]
  return seq and created and string.find(seq .. created .. numbers, '^%d+$') and plain_type(task_type)
end
