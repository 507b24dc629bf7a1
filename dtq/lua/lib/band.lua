--[[ The length of a band. A key that something else has put in the place of its stream counts as empty: the other bands,
and the other queues, must not stand still with it. The leader says so (check_queues). ]]

local function band_length(queue, band)
  --[[ Returns the length, and whether the key is no stream. ]]
  local length = redis.pcall('XLEN', key.stream(queue, band))
  if type(length) == 'number' then return length, false end
  return 0, true
end
