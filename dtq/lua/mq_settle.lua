--[[ mq_settle: gives back what a subscription's name owns and the subscription does not hold: what a claim took whose
reply was lost, or what nobody was handed when it ends. It was not delivered, so the claim does not count. Whoever else waits is told of
work: a token may have been on its way to this one.
number: of the claim whose reply is not known; it may arrive yet, and is to take nothing then.
topics: all of the subscription's, a line each. items: what it holds.
Returns how many were given back, at most three hundred: ask again then. A repeat finds the rest.
]]
--@include clock mq mq_park
--@args queue consumer number topics idle_ms
--@items topic entry

local record, held, parked = key.mq_consumer(queue, consumer), {}, 0
if redis.call('PEXPIRE', record, RECORD_KEEP) == 1 then redis.call('HSET', record, 'settled', number) end
for at = ITEMS, #ARGV, ITEM do
  --@item at
  held[topic .. ' ' .. entry] = true
end
for topic in string.gmatch(topics, '[^\n]+') do
  parked = parked + mq_park(queue, topic, consumer, held, MOST_PARKED - parked)
  if redis.call('XLEN', key.mq_topic(queue, topic)) > 0 then mq_ring(topic) end
end
mq_finish(queue, idle_ms)
return parked
