--[[ audit_note: writes down what somebody did that changed nothing, such as looking at what is hidden
Returns 1; a repeat of operation_id writes nothing more and returns 1 too.
]]
--@include audit
--@args action target operation_id who

if not audited(operation_id) then audit(who, operation_id, action, target, 1) end
return 1
