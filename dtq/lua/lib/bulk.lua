--[[ Bulk jobs: what an operator does to many tasks, a bounded step a script. The job's record moves with every step in
the same script, so its counts are exact, and whoever takes it up again goes on where it stood. ]]
--@include clock audit

local function take_job(job, runner, lease_ms)
  --[[ Takes or renews the lease. Returns nil and a code when the step must not be done: GONE, DONE, ABORTED, HELD. ]]
  local record = key.bulk(job)
  local state, holder, lease, who, action, position, done, skipped, failed, looked, aim = unpack(redis.call('HMGET',
    record, 'state', 'runner', 'lease', 'who', 'action', 'position', 'done', 'skipped', 'failed', 'looked', 'aim'))
  if not state then return nil, 'GONE' end
  if state ~= 'running' then return nil, string.upper(state) end
  if holder ~= runner and tonumber(lease) > now_ms then return nil, 'HELD' end
  redis.call('PEXPIRE', record, BULK_KEEP)  -- first: at maxmemory only what begins without a need may go on
  redis.call('HSET', record, 'runner', runner, 'lease', text(now_ms + lease_ms), 'updated', text(now_ms))
  return { id = job, who = who, action = action, position = position, done = tonumber(done),
    skipped = tonumber(skipped), failed = tonumber(failed), looked = tonumber(looked), aim = aim }
end

local function note_job(job)
  redis.call('HSET', key.bulk(job.id), 'position', job.position, 'done', job.done, 'skipped', job.skipped, 'failed',
    job.failed, 'looked', job.looked)
end

local function end_job(job, state)
  --[[ One entry in the audit for all of it. ]]
  redis.call('HSET', key.bulk(job.id), 'state', state, 'ended', text(now_ms), 'updated', text(now_ms), 'lease', 0)
  redis.call('ZREM', key.open_bulks(), job.id)
  audit(job.who, job.id, job.action, job.aim, job.done, cjson.encode({ bulk_id = job.id, state = state,
    skipped = job.skipped, failed = job.failed }))
end
