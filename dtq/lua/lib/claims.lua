--[[ The numbers of a worker's claims, so that one which was sent twice, or held up on its way, takes nothing. ]]

local function claimed_before(worker, process, number)
  --[[ Whether this process has claimed with this number, or a later one, already. ]]
  local last = redis.call('HGET', key.worker(worker), 'claims')
  local last_process, last_number = string.match(last or '', '^(%S+) (%d+)$')
  return last_process == process and tonumber(number) <= tonumber(last_number)
end

local function note_claim(worker, process, number)
  --[[ Last of all: at maxmemory a script may write this only once it has written what needs no memory. ]]
  if redis.call('EXISTS', key.worker(worker)) == 1 then
    redis.pcall('HSET', key.worker(worker), 'claims', process .. ' ' .. number)
  end
end
