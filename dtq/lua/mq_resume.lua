--[[ mq_resume: the topic goes on; a subscription that waits for it is woken
Returns 1 resumed, 0 it was not paused; a repeat of operation_id gets the first answer.
]]
--@include clock mq audit
--@args queue topic operation_id who idle_ms

if redis.call('HDEL', key.mq_paused(queue), topic) == 0 then return audited(operation_id) and 1 or 0 end
mq_ring(topic)
mq_finish(queue, idle_ms)
audit(who, operation_id, 'mq.resume', queue .. '/' .. topic, 1)
return 1
