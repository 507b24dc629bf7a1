--[[ The statuses without a way out, as states.TERMINAL has them (a test compares). ]]
local TERMINAL = { succeeded = true, failed = true, dead_lettered = true, cancelled = true, expired = true }
