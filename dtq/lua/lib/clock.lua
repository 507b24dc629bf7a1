--[[ Redis's clock, the only one that decides anything. Numbers of this size go through `text`: Lua prints them short. ]]
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now_us / 1000)
local texts = {}

local function text(number)
  --[[ Each is made once a script: to format a number costs as much as to look a field up. Redis formats the numbers
  that a command is given, so what is written for every task goes through this too. ]]
  local known = texts[number]
  if not known then
    known = string.format('%.0f', number)
    texts[number] = known
  end
  return known
end
