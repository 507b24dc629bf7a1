--[[ bulk_purge: pending | queued | retrying -> cancelled, with the reason purged: a step of the purge of a queue. Tasks
that run are left alone, and so are those that came after the job.
limit: how many are looked at; 0 only renews the lease. With the last step the job is done, which the audit and an event
tell once.
Returns {'RUNNING', changed} {'DONE'} {'ABORTED'} {'GONE'} {'HELD'}: another process does it. A repeat does the next step.
Events: TASK_CANCELLED, QUEUE_PURGED.
]]
--@include clock journal index wake ticket finish record bulk
--@args id runner lease_ms limit

local stages = { 'pending', 'retrying', 'queued' }  -- as tasks move, so that none slips through on its way
local job, code = take_job(id, runner, lease_ms)
if not job then return { code } end
if tonumber(limit) == 0 then return { 'RUNNING', 0 } end
local queue, latest = job.aim, redis.call('HGET', key.bulk(id), 'latest')
-- what cannot be changed stays at the front of its index and is stepped over
local stage, stepped_over = string.match(job.position, '^(%d+) (%d+)$')
stage, stepped_over = tonumber(stage), tonumber(stepped_over)
local status = stages[stage]
local ids = redis.call('ZRANGEBYSCORE', key.index(queue, status), '-inf', latest, 'LIMIT', stepped_over, limit)
local changed = 0

local function purge(task_id)
  local record = key.task(task_id)
  local v, found, own_queue, band, entry, created, task_type, attempt, idem, worker = unpack(redis.call('HMGET', record,
    'v', 'status', 'queue', 'priority', 'entry', 'created', 'type', 'attempt', 'idem', 'worker'))
  if v and tonumber(v) and tonumber(v) > SCHEMA_VERSION then return 'failed' end
  if found ~= status or own_queue ~= queue then return 'skipped' end  -- the reconciler's business
  if not (band and readable(task_type, '1', created, ' ' .. (attempt or '0'))) then return 'failed' end
  if status == 'queued' then remove_ticket(queue, band, entry) else redis.call('ZREM', key.schedule(), task_id) end
  redis.call('HSET', record, 'status', 'cancelled', 'finished', text(now_ms), 'reason', 'purged')
  finish({ id = task_id, queue = queue, type = task_type, status = status, created = created, attempt = attempt,
    idem = idem, worker = worker }, 'cancelled', 'purged')
  return 'done'
end

for _, task_id in ipairs(ids) do
  local what = purge(task_id)
  job[what] = job[what] + 1
  if what == 'done' then changed = changed + 1 else stepped_over = stepped_over + 1 end
end
job.looked = job.looked + #ids
if #ids < tonumber(limit) then stage, stepped_over = stage + 1, 0 end
job.position = stage .. ' ' .. stepped_over
write_index()
note_job(job)
local ended = stage > #stages
if ended then
  end_job(job, 'done')
  local actor, reason = string.match(job.who, '^([^\t]*)\t([^\t]*)')
  event('QUEUE_PURGED', '', queue, '', '0', '', cjson.encode({ by = actor, reason = reason, count = job.done }))
end
write_journal()
return ended and { 'DONE' } or { 'RUNNING', changed }
