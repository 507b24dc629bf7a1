--[[ Fenced renewal: only what this claim still owns, never taking anything back from another consumer. JUSTID leaves
the delivery count alone and copies no payload. ]]

local function renew(stream, entry, consumer)
  local kept = redis.pcall('XCLAIM', stream, WORKER_GROUP, consumer, 0, entry, 'JUSTID')
  return not kept.err and #kept > 0
end
