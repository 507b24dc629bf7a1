--[[ operation_end: stores the result of a side effect, or frees its key when it failed (result '')
Returns 1, or 0 when the hold had ended and another caller has the key. A repeat gets the same answer.
]]
--@args digest token result ttl_ms

local record = key.operation(digest)
local state, owner = unpack(redis.call('HMGET', record, 'state', 'token'))
if state and owner ~= token then return 0 end
if result == '' then
  redis.call('DEL', record)
else
  redis.call('HSET', record, 'v', SCHEMA_VERSION, 'state', 'done', 'token', token, 'result', result)
  redis.call('PEXPIRE', record, ttl_ms)
end
return 1
