--[[ mq_renew: the claims of a subscription begin anew, those that it still owns; nothing is taken back
Returns one code an item: 1 renewed, 0 lost. A repeat renews again.
]]
--@include mq_owned renew
--@args queue consumer
--@items topic entry

local codes = {}
for at = ITEMS, #ARGV, ITEM do
  --@item at
  local owned = mq_owned(queue, topic, entry, consumer) and renew(key.mq_topic(queue, topic), entry, consumer)
  codes[#codes + 1] = owned and 1 or 0
end
return codes
