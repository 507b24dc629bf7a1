--[[ list_tasks: one page of task ids, newest created first, merged over queues and statuses in one look, so nothing is
skipped or shown twice while tasks move between them. Read-only.
score, last_id: where the page before ended, '' for the first. items: the indexes to merge.
Returns {score, id, score, id, ...}
]]
--@args score last_id limit lowest
--@items queue status

local wanted = tonumber(limit)
local found = {}

local function before(a, b)
  if a[1] ~= b[1] then return a[1] > b[1] end
  return a[2] > b[2]
end

local function merge(sorted_set)
  local highest = score == '' and '+inf' or score
  local floor = #found >= wanted and found[#found][1] or lowest
  local offset, fresh = 0, {}
  while #fresh < wanted do
    local part = redis.call('ZREVRANGEBYSCORE', sorted_set, highest, string.format('%.0f', floor), 'WITHSCORES',
      'LIMIT', offset, wanted)
    for at = 1, #part, 2 do
      local own = { tonumber(part[at + 1]), part[at] }
      if score == '' or before({ tonumber(score), last_id }, own) then fresh[#fresh + 1] = own end
    end
    if #part < 2 * wanted then break end
    offset = offset + wanted
  end
  if #fresh > 0 then
    for _, own in ipairs(fresh) do found[#found + 1] = own end
    table.sort(found, before)
    for extra = #found, wanted + 1, -1 do found[extra] = nil end
  end
end

for at = ITEMS, #ARGV, ITEM do
  --@item at
  merge(key.index(queue, status))
end
local page = {}
for _, own in ipairs(found) do
  page[#page + 1] = string.format('%.0f', own[1])
  page[#page + 1] = own[2]
end
return page
