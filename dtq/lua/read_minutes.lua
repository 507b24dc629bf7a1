--[[ read_minutes: the counters of queues in minutes, for charts. Read-only.
by_type: '1' to keep task types apart. Returns {field, number, field, number, ...} an item, in no order; a field is
`type:what`, or what was counted alone
]]
--@args by_type
--@items queue minute

local function added_up(fields)
  local sums, flat = {}, {}
  for field = 1, #fields, 2 do
    local what = string.match(fields[field], '[^:]+$')
    sums[what] = (sums[what] or 0) + tonumber(fields[field + 1])
  end
  for what, number in pairs(sums) do
    flat[#flat + 1] = what
    flat[#flat + 1] = number
  end
  return flat
end

local replies = {}
for at = ITEMS, #ARGV, ITEM do
  --@item at
  local fields = redis.call('HGETALL', key.minute(queue, minute))
  replies[#replies + 1] = by_type == '1' and fields or added_up(fields)
end
return replies
