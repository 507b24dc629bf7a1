--[[ bulk_dead: a step of a bulk job on dead letters: each is requeued (dlq.requeue), or discarded (dlq.discard, dlq.purge)
limit: how many are changed at most; 0 only renews the lease. looks: how many entries are looked at. With the last step
the job is done, which the audit tells once.
Returns {'RUNNING', changed} {'DONE'} {'ABORTED'} {'GONE'} {'HELD'}: another process does it. A repeat does the next step:
nothing is done twice, since the place and the counts move with what was done.
Events: TASK_QUEUED, DEAD_LETTER_DISCARDED.
]]
--@include clock journal index wake ticket finish history record requeue discard letters bulk
--@args id runner lease_ms limit looks mark queue task_type reason error_class error_text

local job, code = take_job(id, runner, lease_ms)
if not job then return { code } end
local record, changed = key.bulk(id), 0
local most, left, ended = tonumber(limit), tonumber(looks), false
if most == 0 then return { 'RUNNING', 0 } end
local task_ids, latest, to_queue, to_priority = unpack(redis.call('HMGET', record, 'task_ids', 'latest', 'to_queue',
  'to_priority'))

local function act(task_id)
  local told
  if job.action == 'dlq.requeue' then
    told = requeue(task_id, id, mark, to_queue, to_priority)
  else
    told = discard(task_id, id)
  end
  if told == 'QUEUED' or told == 'DISCARDED' then
    changed = changed + 1
    job.done = job.done + 1
  elseif told == 'WRONG_STATE' or told == 'UNKNOWN' or told == 'AGAIN' then
    job.skipped = job.skipped + 1
  else
    job.failed = job.failed + 1
  end
end

local function act_on(entry)
  --[[ An entry that its task does not know stands for nothing: gone with what is discarded, else left alone. ]]
  local letter = letter_of(entry[2])
  if not (letter and fits(letter, queue, task_type, reason, error_class, error_text)) then return end
  if redis.call('HGET', key.task(letter.id), 'dead') == entry[1] then
    act(letter.id)
  else
    job.skipped = job.skipped + 1
    if job.action ~= 'dlq.requeue' then redis.call('XDEL', key.dead_letter(), entry[1]) end
  end
end

if task_ids ~= '' then
  local at = tonumber(job.position)
  while at < #task_ids and changed < most and left > 0 do
    act(string.sub(task_ids, at + 1, at + 32))
    at, left, job.looked = at + 32, left - 1, job.looked + 1
  end
  job.position, ended = at, at >= #task_ids
else
  while changed < most and left > 0 and not ended do
    local wanted = math.min(left, most - changed)
    local part = redis.call('XRANGE', key.dead_letter(), job.position, latest, 'COUNT', wanted)
    for _, entry in ipairs(part) do
      act_on(entry)
      job.position, left, job.looked = '(' .. entry[1], left - 1, job.looked + 1
    end
    ended = #part < wanted
  end
end
write_index()
write_journal()
note_job(job)
if ended then
  end_job(job, 'done')
  return { 'DONE' }
end
return { 'RUNNING', changed }
