--[[ Repeats: a caller numbers its operations and keeps a slot while one is under way. The answer to the last one stands
there for its repeat, whatever became of the message in the meantime. ]]

local function mq_answered(queue, slot, operation)
  --[[ Returns the answer that this very operation got, '' when a later one came before it, nil when it is new. ]]
  local number, answer = string.match(redis.call('GET', key.mq_operation(queue, slot)) or '', '^(%d+) (.*)$')
  if not number or tonumber(number) < tonumber(operation) then return nil end
  return number == operation and answer or ''
end

local function mq_remember(queue, slot, operation, answer, idle_ms)
  local keep_ms = math.min(OPERATION_KEEP, tonumber(idle_ms))
  redis.call('SET', key.mq_operation(queue, slot), operation .. ' ' .. answer, 'PX', keep_ms)
end
