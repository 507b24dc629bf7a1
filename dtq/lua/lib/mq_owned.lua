--[[ The fence of every write about a claim. ]]

local function mq_owned(queue, topic, entry, consumer)
  --[[ Returns how often the entry was claimed when the consumer owns it, else nil. ]]
  local found = redis.pcall('XPENDING', key.mq_topic(queue, topic), WORKER_GROUP, entry, entry, 1, consumer)
  if found.err or #found == 0 then return nil end
  return found[1][4]
end
