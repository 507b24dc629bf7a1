--[[ read_gauges: what was seen in queues in minutes, for charts. Read-only. Returns {field, number, ...} an item ]]
--@args
--@items minute

local replies = {}
for at = ITEMS, #ARGV, ITEM do
  --@item at
  replies[#replies + 1] = redis.call('HGETALL', key.gauges(minute))
end
return replies
