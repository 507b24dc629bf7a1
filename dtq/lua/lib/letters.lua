--[[ Dead letters as operators choose them: an entry of the stream against a filter, '' meaning any. Lists, counts and
bulk jobs share it, so what was counted is what is done. ]]

local function letter_of(fields)
  --[[ Returns a table, nil for an entry that is no letter of ours. ]]
  if fields[1] ~= 'id' or #fields < 14 then return nil end
  local found = { id = fields[2], queue = fields[4], type = fields[6], reason = fields[8], error = fields[14] }
  found.class, found.message = string.match(found.error, '^{"class":"(.-)","message":"(.*)"}$')
  return found
end

local function fits(letter, queue, task_type, reason, error_class, error_text)
  --[[ error_text: in lower case, as JSON writes it; found anywhere in class and message. ]]
  return (queue == '' or letter.queue == queue) and (task_type == '' or letter.type == task_type)
    and (reason == '' or letter.reason == reason) and (error_class == '' or letter.class == error_class)
    and (error_text == '' or string.find(string.lower((letter.class or '') .. ' ' .. (letter.message or letter.error)),
      error_text, 1, true) ~= nil)
end
