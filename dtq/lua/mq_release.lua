--[[ mq_release: moves a message that the subscription still owns to the end of a topic, its own or another, or puts it
off; key, time of the first put and deliveries stay. Its own topic never counts as full.
waiting: '1' when the caller will wait for room, '0' when it will not.
Returns {'DONE'} | {'LOST'} | {'FULL', now in ms}. A repeat gets the first answer.
]]
--@include clock mq mq_message mq_delayed mq_owned mq_operation
--@args queue consumer slot operation topic entry own_key target max_size delay_ms waiting idle_ms

if mq_answered(queue, slot, operation) then return { 'DONE' } end
local claims = mq_owned(queue, topic, entry, consumer)
if not claims then return { 'LOST' } end
local found = redis.call('XRANGE', key.mq_topic(queue, topic), entry, entry)[1]
local message_key, data, first, n = mq_read(found and found[2] or {})
if not message_key then  -- deleted or changed by something else
  mq_take_out(queue, topic, entry)
  mq_forget_key(queue, own_key, topic, entry)
  mq_gone(topic)
  mq_finish(queue, idle_ms)
  return { 'LOST' }
end
if target ~= topic and tonumber(max_size) > 0 and mq_size(queue, target) >= tonumber(max_size) then
  if waiting == '1' then
    mq_wait_for_room(queue, target)
  else
    mq_count(target, 'full')
    mq_finish(queue, idle_ms)
  end
  return { 'FULL', text(now_ms) }
end
mq_take_out(queue, topic, entry)
if tonumber(delay_ms) > 0 then
  mq_delay(queue, target, message_key, data, first, text(n + claims), delay_ms)
else
  mq_add(queue, target, message_key, data, first, text(n + claims))
end
if target ~= topic or tonumber(delay_ms) > 0 then mq_gone(topic) end
mq_count(topic, 'released')
mq_remember(queue, slot, operation, '', idle_ms)
mq_finish(queue, idle_ms)
return { 'DONE' }
