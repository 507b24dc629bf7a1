--[[ What a subscription gives back goes to the parked consumer: it keeps its place in front of what was never claimed,
and no entry is left without an owner when the subscription's name is deleted. ]]
--@include clock mq

local function mq_park(queue, topic, consumer, spare, limit)
  --[[ spare: what stays, by `topic entry`; nil to give back all, counted as delivered. With it the claims are undone:
  what nobody was handed was not delivered. Returns how many were given back, and whether that was all. ]]
  local stream, from, parked = key.mq_topic(queue, topic), '-', 0
  while true do
    local pending = redis.pcall('XPENDING', stream, WORKER_GROUP, from, '+', 100, consumer)
    if pending.err or #pending == 0 then return parked, true end
    for _, one in ipairs(pending) do
      if parked >= limit then return parked, false end
      if not (spare and spare[topic .. ' ' .. one[1]]) then
        local count = spare and math.max(one[4] - 1, 0) or one[4]
        redis.call('XCLAIM', stream, WORKER_GROUP, PARKED, 0, one[1], 'RETRYCOUNT', count, 'JUSTID')
        parked = parked + 1
        mq_ring(topic)
      end
    end
    from = '(' .. pending[#pending][1]
  end
end
