--[[ Moves between the indexes, gathered and written once at the end of a script. Scores never change while a task
lives (its creation), so a page of a list neither skips nor repeats what moves meanwhile. ]]
local entering, leaving = {}, {}

local function put(sorted_set, score, member)
  local list = entering[sorted_set]
  if not list then list = {} entering[sorted_set] = list end
  list[#list + 1] = score
  list[#list + 1] = member
end

local function drop(sorted_set, member)
  local list = leaving[sorted_set]
  if not list then list = {} leaving[sorted_set] = list end
  list[#list + 1] = member
end

local function move(task_id, queue, from, to, created)
  if from then drop(key.index(queue, from), task_id) end
  if to then put(key.index(queue, to), created, task_id) end
end

local function write_index()
  for sorted_set, list in pairs(leaving) do redis.call('ZREM', sorted_set, unpack(list)) end
  for sorted_set, list in pairs(entering) do redis.call('ZADD', sorted_set, unpack(list)) end
end
