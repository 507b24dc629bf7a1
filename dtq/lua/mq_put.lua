--[[ mq_put: stores messages, each by itself, in order: known already? full? stored
visibility: '' for who does not claim. made_up: '1' for a key that nobody else can have. waiting: '1' when the caller will wait for room, '0' when it will not.
Returns {'DONE', a letter an item, now in ms}: s stored, k known already, f full
  | {'MISMATCH', visibility} | {'NEWER', version} | {'TOO_MANY_QUEUES', number}
A repeat gets the first answer.
]]
--@include clock mq mq_message mq_delayed mq_operation
--@args queue visibility slot operation waiting idle_ms
--@items topic message_key made_up data max_size delay_ms

local answered = mq_answered(queue, slot, operation)
if answered then return { 'DONE', answered, text(now_ms) } end
local refused = mq_refusal(queue, visibility)
if refused then return refused end

local letters, opened, what = {}, false, { s = 'stored', k = 'duplicate', f = 'full' }
for at = ITEMS, #ARGV, ITEM do
  --@item at
  local letter = 's'
  if made_up == '0' and mq_known(queue, message_key) then
    letter = 'k'
  elseif tonumber(max_size) > 0 and mq_size(queue, topic) >= tonumber(max_size) then
    letter = 'f'
  elseif not opened then
    mq_open(queue, visibility)
    opened = true
  end
  if letter == 's' and tonumber(delay_ms) > 0 then
    mq_delay(queue, topic, message_key, data, text(now_ms), '0', delay_ms)
  elseif letter == 's' then
    mq_add(queue, topic, message_key, data, text(now_ms), '0')
  end
  if letter ~= 'f' or waiting == '0' then
    mq_count(topic, what[letter])
  else
    mq_wait_for_room(queue, topic)
  end
  letters[#letters + 1] = letter
end
local answer = table.concat(letters)
if string.find(answer, '[sk]') then mq_remember(queue, slot, operation, answer, idle_ms) end
mq_finish(queue, idle_ms)
return { 'DONE', answer, text(now_ms) }
