--[[ What stands in a stream and is not being worked on. ]]

local function claimed(stream)
  --[[ What was handed back is pending too, under the parked consumers, but it waits. ]]
  local summary = redis.pcall('XPENDING', stream, WORKER_GROUP)
  if summary.err or summary[1] == 0 then return 0 end
  local number = summary[1]
  for _, consumer in ipairs(summary[4]) do
    if string.sub(consumer[1], 1, #PARKED) == PARKED then number = number - tonumber(consumer[2]) end
  end
  return number
end

local function unread_from(stream)
  --[[ Where the entries begin that nobody has claimed yet. ]]
  local groups = redis.call('XINFO', 'GROUPS', stream)
  for _, group in ipairs(groups) do
    local fields = {}
    for at = 1, #group, 2 do fields[group[at]] = group[at + 1] end
    if fields.name == WORKER_GROUP then return '(' .. fields['last-delivered-id'] end
  end
  return '-'
end
