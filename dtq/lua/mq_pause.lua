--[[ mq_pause: nothing of the topic is claimed any more; what was claimed goes on
Returns 1 paused, 0 it was paused already (and stays as it was); a repeat of operation_id gets the first answer.
]]
--@include clock audit
--@args queue topic operation_id who actor reason

local found = redis.call('HGET', key.mq_paused(queue), topic)
if found then return string.find(found, '"id":"' .. operation_id .. '"', 1, true) and 1 or 0 end
redis.call('HSET', key.mq_paused(queue), topic,
  cjson.encode({ by = actor, reason = reason, at = now_ms / 1000, id = operation_id }))
audit(who, operation_id, 'mq.pause', queue .. '/' .. topic, 1)
return 1
