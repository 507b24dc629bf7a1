--[[ mq_claim: a subscription takes messages: first those whose claim has expired, by the topics' priority, then topic by
topic, what was handed back before what was never claimed.
items: its topics with room, the most urgent first; room: how many of the topic; class: topics of one number are equals.
What is left behind in a class keeps the next ones waiting: nothing overtakes what is more urgent. extra: how many
beyond the rooms in all, for those who wait already. look: '1' now and then: to be seen, and to look for what is not its daily business;
latest: '' while nothing counts as expired: Redis was away a moment ago, and owners could not renew either; else the time
in ms that its clock shows at most if it has not leapt: beyond, nothing has really expired either.
max_deliveries: 0 for any number; what would be claimed once more than that is dead. What is due is made ready.
number: a claim that `mq_settle` has named, or one of a subscription that is not there any more, takes nothing: it was
held up on its way, and nobody waits for it.
Returns {'DONE', messages, topics with more and those that wait for them, next due in ms or '', whether delays are in
use, risk, whether the subscription is known, now in ms} or a refusal as mq_put does; a message is {topic, entry, key,
data, first, deliveries}; risk: 0 nothing is in flight, 2 a claim is about to expire, else 1 (with look). Whoever leaves
work behind rings for the next.
Not repeatable: after a lost reply `mq_settle` gives back what was taken.
]]
--@include clock mq mq_message mq_delayed mq_dead mq_presence waiting
--@args queue consumer number visibility look latest extra max_deliveries dead_topic idle_ms
--@items topic room class

local refused = mq_refusal(queue, visibility)
if refused then return refused end
local registered, settled = unpack(redis.call('HMGET', key.mq_consumer(queue, consumer), 'since', 'settled'))
if not registered or settled and tonumber(number) <= tonumber(settled) then
  return { 'DONE', {}, {}, '', 0, 0, registered and 1 or 0, text(now_ms) }
end
local messages, spare, looks, bytes, risk = {}, tonumber(extra), 200, 0, 0
local rooms, paused = {}, {}

local function left(topic) return rooms[topic] + spare end

local function enough() return looks <= 0 or bytes >= CLAIM_BYTES or #messages >= 100 end

local function give(topic, entry, fields, claims)
  --[[ Hands one entry out that this consumer now owns. claims: of this entry, this one among them. ]]
  looks = looks - 1
  local message_key, data, first, n = mq_read(fields)
  if not message_key then
    mq_bury_corrupt(queue, dead_topic, topic, entry, fields)
    return
  end
  local deliveries = n + claims
  if tonumber(max_deliveries) > 0 and deliveries > tonumber(max_deliveries) and topic ~= dead_topic then
    mq_take_out(queue, topic, entry)
    mq_bury(queue, dead_topic, topic, message_key, data, first, deliveries - 1, 'max_deliveries')
    mq_gone(topic)
    return
  end
  if spare > 0 then spare = spare - 1 else rooms[topic] = rooms[topic] - 1 end  -- the first go to those who wait
  bytes = bytes + #data
  if deliveries > 1 then mq_count(topic, 'redelivered') end
  messages[#messages + 1] = { topic, entry, message_key, data, first, deliveries }
end

local function take_over(topic, pending)
  --[[ pending: rows of XPENDING: what another consumer holds no longer. ]]
  for _, row in ipairs(pending) do
    if row[2] ~= PARKED then mq_count(topic, 'lost') end
    local entry = redis.call('XCLAIM', key.mq_topic(queue, topic), WORKER_GROUP, consumer, 0, row[1])[1]
    if entry then
      give(topic, entry[1], entry[2], row[4] + 1)
    else  -- deleted under us: Redis 6.2 answers nil and keeps it pending, 7 drops it
      looks = looks - 1
      redis.call('XACK', key.mq_topic(queue, topic), WORKER_GROUP, row[1])
      mq_count(topic, 'corrupt')
    end
  end
end

local function walk(topic, ask)
  --[[ Takes over what `ask` finds, as long as there is room. ]]
  while left(topic) > 0 and not enough() do
    local wanted = math.min(left(topic), 25)
    local pending = ask(key.mq_topic(queue, topic), wanted)
    if pending.err or #pending == 0 then return end
    take_over(topic, pending)
    if #pending < wanted then return end
  end
end

local function ask_expired(stream, wanted)
  return redis.pcall('XPENDING', stream, WORKER_GROUP, 'IDLE', visibility, '-', '+', wanted)
end

local function ask_parked(stream, wanted)
  return redis.pcall('XPENDING', stream, WORKER_GROUP, '-', '+', wanted, PARKED)
end

local function read_new(topic)
  local stream = key.mq_topic(queue, topic)
  local function read(wanted)
    return redis.pcall('XREADGROUP', 'GROUP', WORKER_GROUP, consumer, 'COUNT', wanted, 'STREAMS', stream, '>')
  end
  while left(topic) > 0 and not enough() do
    local wanted = math.min(left(topic), 25)
    local reply = read(wanted)
    if reply and reply.err then  -- no group: a new stream, or one after XGROUP DESTROY
      redis.call('XGROUP', 'CREATE', stream, WORKER_GROUP, '0')
      reply = read(wanted)
    end
    local entries = reply and reply[1][2] or {}
    for _, entry in ipairs(entries) do give(topic, entry[1], entry[2], 1) end
    if #entries < wanted then return end
  end
end

local function more(topic)
  --[[ Whether something of the topic waits still. ]]
  local stream = key.mq_topic(queue, topic)
  local parked = ask_parked(stream, 1)
  return not parked.err and #parked > 0 or #redis.call('XRANGE', stream, unread_from(stream), '+', 'COUNT', 1) > 0
end

mq_open(queue, visibility)
mq_make_ready(queue, 50)
for _, name in ipairs(redis.call('HKEYS', key.mq_paused(queue))) do paused[name] = true end
local open, class_of = {}, {}
for at = ITEMS, #ARGV, ITEM do
  --@item at
  rooms[topic], class_of[topic] = tonumber(room), class
  if not paused[topic] and redis.call('XLEN', key.mq_topic(queue, topic)) > 0 then open[#open + 1] = topic end
end
if look == '1' then
  mq_seen(queue, consumer)
  mq_forget_the_dead(queue)
  mq_sweep_keys(queue)
  local soon = math.max(visibility - 1000, visibility / 2)
  for _, topic in ipairs(open) do
    local stream = key.mq_topic(queue, topic)
    local pending = redis.pcall('XPENDING', stream, WORKER_GROUP)
    if not pending.err and pending[1] > 0 then
      if latest ~= '' and now_ms <= tonumber(latest) then walk(topic, ask_expired) end
      risk = math.max(risk, #redis.call('XPENDING', stream, WORKER_GROUP, 'IDLE', text(soon), '-', '+', 1) + 1)
    end
  end
end
local left_behind, stopped_at = {}, nil
for _, topic in ipairs(open) do
  if stopped_at and stopped_at ~= class_of[topic] then
    left_behind[#left_behind + 1] = topic
  else
    walk(topic, ask_parked)
    read_new(topic)
    if (left(topic) <= 0 or enough()) and more(topic) then
      stopped_at, left_behind[#left_behind + 1] = class_of[topic], topic
      mq_ring(topic)
    end
  end
end
local delays = tonumber(redis.call('HGET', key.mq_config(queue), 'delays') or 0)
mq_finish(queue, idle_ms)
return { 'DONE', messages, left_behind, mq_next_due(queue) or '', delays > now_ms - DELAYS_RECENT and 1 or 0, risk,
  1, text(now_ms) }
