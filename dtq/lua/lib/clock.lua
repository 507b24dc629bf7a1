--[[ Redis's clock, the only one that decides anything. Numbers of this size go through `text`: Lua prints them short. ]]
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now_us / 1000)
local function text(number) return string.format('%.0f', number) end
