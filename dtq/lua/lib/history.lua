--[[ The history of a task: one JSON text an attempt that ended otherwise than by success; that one is in the hash. ]]
--@include clock

local function remember(task_id, attempt, worker, started, tail)
  --[[ tail: JSON members from the caller, such as "o":"failed","d":12; worker ids are plain by their own rule. ]]
  redis.call('RPUSH', key.attempts(task_id), '{"n":' .. (attempt or '0') .. ',"w":"' .. (worker or '') .. '","s":' ..
    (started or 'null') .. ',"f":' .. text(now_ms) .. ',' .. tail .. '}')
  redis.call('LTRIM', key.attempts(task_id), -MAX_HISTORY, -1)
end
