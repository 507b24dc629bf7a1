--[[ mq_requeue: a dead message waits again in the topic that it came from, or in `target`; its deliveries start anew
Returns 1 moved, 0 no dead message with this key, or one that a subscription to the dead topic holds.
A repeat gets the first answer.
]]
--@include clock mq mq_message audit
--@args queue dead_topic message_key target operation_id who detail idle_ms

local place, entry = string.match(redis.call('HGET', key.mq_keys(queue), message_key) or '', '^(%S+) (%S+)$')
local found = place == dead_topic and entry ~= '@' and redis.call('XRANGE', key.mq_topic(queue, dead_topic), entry, entry)[1]
if not found then return audited(operation_id) and 1 or 0 end
local pending = redis.pcall('XPENDING', key.mq_topic(queue, dead_topic), WORKER_GROUP, entry, entry, 1)
if not pending.err and #pending > 0 and pending[1][2] ~= PARKED then return 0 end
local own_key, data, first = mq_read(found[2])
if own_key ~= message_key then return 0 end
for at = 1, #found[2], 2 do
  if target == '' and found[2][at] == 'topic' then target = found[2][at + 1] end
end
if target == '' then return 0 end
mq_take_out(queue, dead_topic, entry)
mq_add(queue, target, message_key, data, first, '0')
mq_gone(dead_topic)
mq_count(target, 'requeued')
audit(who, operation_id, 'mq.requeue', queue .. '/' .. target, 1, detail)
mq_finish(queue, idle_ms)
return 1
