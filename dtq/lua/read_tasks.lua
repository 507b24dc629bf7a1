--[[ read_tasks: records of tasks without their large parts, for a page of a list. Read-only.
Returns {record, whether its result is still there} an item; the record is empty when there is no such task
]]
--@args
--@items id

local found = {}
for at = ITEMS, #ARGV, ITEM do
  --@item at
  found[#found + 1] = { redis.call('HGETALL', key.task(id)), redis.call('EXISTS', key.result(id)) }
end
return found
