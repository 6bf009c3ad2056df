-- The first line of the reasons of an item.
local function newest_reason(item) return string.match(item.reason or '', '^[^\n]*') end
