--[[ mq_acknowledge: removes messages that the subscription still owns; their keys are free, or lie under a tombstone
Returns a letter an item: a removed, l not its any more. A repeat gets the first answer.
What frees memory comes first: at maxmemory the rest may follow then.
]]
--@include clock mq mq_message mq_owned mq_operation
--@args queue consumer slot operation tombstone_ms idle_ms
--@items topic entry message_key

local answered = mq_answered(queue, slot, operation)
if answered then return answered end
local letters, removed = {}, false
for at = ITEMS, #ARGV, ITEM do
  --@item at
  local letter = 'l'
  if mq_owned(queue, topic, entry, consumer) then
    mq_take_out(queue, topic, entry)
    mq_forget_key(queue, message_key, topic, entry)
    if tonumber(tombstone_ms) > 0 then mq_bury_key(queue, message_key, tombstone_ms) end
    mq_gone(topic)
    mq_count(topic, 'acknowledged')
    letter, removed = 'a', true
  end
  letters[#letters + 1] = letter
end
local answer = table.concat(letters)
if removed then
  mq_remember(queue, slot, operation, answer, idle_ms)
  mq_finish(queue, idle_ms)
end
return answer
