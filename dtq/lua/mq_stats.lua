--[[ mq_stats: what stands in topics of a queue, in one look. Read-only.
Returns {now in ms, rows}; a row a topic: {waiting, in flight, delayed, time in ms of the first put of what waits
longest or '', pause record or '', whether the topic is there at all}
]]
--@include clock mq_message mq_waiting
--@args queue
--@items topic

local rows = {}
for at = ITEMS, #ARGV, ITEM do
  --@item at
  local stream = key.mq_topic(queue, topic)
  local length, delayed, oldest = redis.call('XLEN', stream), redis.call('ZCARD', key.mq_delayed(queue, topic)), ''
  local taken = length > 0 and math.min(claimed(stream), length) or 0  -- something else may have deleted what is taken
  if length > taken then
    local waiting = { mq_waiting_entries(queue, topic, '+', 1)[1] }
    local unread = redis.call('XRANGE', stream, unread_from(stream), '+', 'COUNT', 1)[1]
    if unread then waiting[#waiting + 1] = unread end
    for _, entry in ipairs(waiting) do
      local _, _, first = mq_read(entry[2])
      if first and (oldest == '' or tonumber(first) < tonumber(oldest)) then oldest = first end
    end
  end
  rows[#rows + 1] = { length - taken, taken, delayed, oldest, redis.call('HGET', key.mq_paused(queue), topic) or '',
    length + delayed > 0 and 1 or redis.call('EXISTS', stream) }
end
return { text(now_ms), rows }
