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

local function in_parts(command, sorted_set, list)
  for from = 1, #list, 1000 do  -- unpack fails at some thousands
    redis.call(command, sorted_set, unpack(list, from, math.min(from + 999, #list)))
  end
end

local function write_index()
  --[[ What leaves goes first, so one task moves at most once between two calls of this. ]]
  for sorted_set, list in pairs(leaving) do in_parts('ZREM', sorted_set, list) end
  for sorted_set, list in pairs(entering) do in_parts('ZADD', sorted_set, list) end
  entering, leaving = {}, {}
end
