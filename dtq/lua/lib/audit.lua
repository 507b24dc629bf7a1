--[[ The audit: what operators did, one entry an action, written by the script that did it. Its ids are Redis's clock.
who: 'actor<TAB>reason<TAB>request id'. The operation id tells a repeat from a second action. ]]

local function audit(who, operation_id, action, target, number, detail)
  local actor, reason, request = string.match(who, '^([^\t]*)\t([^\t]*)\t([^\t]*)$')
  redis.call('XADD', key.audit(), 'MAXLEN', '~', AUDIT_MAXLEN, '*', 'op', operation_id, 'actor', actor or who,
    'action', action, 'target', target, 'reason', reason or '', 'request', request or '', 'count', number,
    'detail', detail or '')
end

local function audited(operation_id)
  --[[ Whether this very operation was done: asked by scripts that find nothing to do, since a lost reply is asked for
  again at once. ]]
  for _, entry in ipairs(redis.call('XREVRANGE', key.audit(), '+', '-', 'COUNT', 100)) do
    if entry[2][2] == operation_id then return true end
  end
  return false
end
