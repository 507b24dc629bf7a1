--[[ mq_purge: removes messages of a topic that wait or are delayed; what is in flight is left alone; keys are free
before: the time in ms at which the purge began: what was put later stays, and the purge comes to an end.
planned: how many messages there were then, for the audit; '' after the first script of a purge.
Returns how many were removed, at most `limit`: ask again then. A repeat removes what is left.
]]
--@include clock mq mq_message mq_delayed mq_waiting audit
--@args queue topic before limit planned operation_id who idle_ms

local removed, left = 0, tonumber(limit)
for _, entry in ipairs(mq_waiting_entries(queue, topic, before, left)) do
  mq_take_out(queue, topic, entry[1])
  local message_key = mq_read(entry[2])
  if message_key then mq_forget_key(queue, message_key, topic, entry[1]) end
  mq_gone(topic)
  removed = removed + 1
end
local delayed = key.mq_delayed(queue, topic)
for _, message_key in ipairs(left > removed and redis.call('ZRANGE', delayed, 0, left - removed - 1) or {}) do
  mq_undelay(queue, topic, message_key)
  mq_forget_key(queue, message_key, topic, '@')
  mq_gone(topic)
  removed = removed + 1
end
mq_set_due(queue, topic)
if removed > 0 then mq_count(topic, 'purged', removed) end
if planned ~= '' and not audited(operation_id) then
  audit(who, operation_id, 'mq.purge', queue .. '/' .. topic, planned)
end
mq_finish(queue, idle_ms)
return removed
