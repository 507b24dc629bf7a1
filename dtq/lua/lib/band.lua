--[[ The length of a band. A key that something else has put in the place of its stream counts as empty: the other bands,
and the other queues, must not stand still with it. The leader says so (check_queues). ]]

local function band_length(queue, band)
  local length = redis.pcall('XLEN', key.stream(queue, band))
  return type(length) == 'number' and length or 0
end
