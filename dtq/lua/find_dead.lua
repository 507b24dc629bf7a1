--[[ find_dead: dead letters that fit a filter, newest first; all that fit are counted, `limit` of them are returned.
Read-only.
newest, oldest: where to begin and to end, as XREVRANGE takes it. looks: how many entries are looked at. stop: '1' ends the
look with the last one returned.
Returns {entries, number that fit, id of the last entry looked at or '' when there was none, whether more are left}
]]
--@include letters
--@args newest oldest limit looks stop queue task_type reason error_class error_text

local found, number, last, left = {}, 0, '', tonumber(looks)
local from, wanted = newest, tonumber(limit)
while left > 0 do
  local part = redis.call('XREVRANGE', key.dead_letter(), from, oldest, 'COUNT', math.min(left, 100))
  for _, entry in ipairs(part) do
    last = entry[1]
    local letter = letter_of(entry[2])
    if letter and fits(letter, queue, task_type, reason, error_class, error_text) then
      number = number + 1
      if number <= wanted then found[number] = entry end
      if stop == '1' and number == wanted then return { found, number, last, 1 } end
    end
  end
  if #part < math.min(left, 100) then return { found, number, last, 0 } end
  left, from = left - #part, '(' .. last
end
return { found, number, last, 1 }
