--[[ operation_begin: takes a key for one run of a side effect, or tells what became of it
hold_ms: how long the run may take; a caller that is killed frees the key by that.
Returns {'RUN'} (also for a repeat with the same token) {'BUSY', ms until the hold ends} {'DONE', result}
]]
--@args digest token hold_ms

local record = key.operation(digest)
local state, owner, result = unpack(redis.call('HMGET', record, 'state', 'token', 'result'))
if state == 'done' then return { 'DONE', result } end
if state and owner ~= token then return { 'BUSY', redis.call('PTTL', record) } end
redis.call('HSET', record, 'v', SCHEMA_VERSION, 'state', 'running', 'token', token)
redis.call('PEXPIRE', record, hold_ms)
return { 'RUN' }
