-- ARGV: tenant or empty, id
local name = ARGV[1] == '' and 'x' .. ARGV[2] or 'y' .. ARGV[1] .. ARGV[2]
if not call('ZSCORE', INDEX, name) then return false end
return {call('HGET', BODIES, ARGV[2]), item_of(ARGV[2]).lane and 1 or 0}
