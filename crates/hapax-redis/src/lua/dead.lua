-- ARGV: tenant or nothing, id after which or nothing, how many at most
local start = ARGV[1] == '' and 'x' or 'y' .. ARGV[1]
local letters = {}
for i, found in ipairs(names(start, ARGV[2] ~= '' and start .. ARGV[2] or nil, ARGV[3])) do
  local id = id_in(found)
  local item = item_of(id)
  letters[i] = {id, item.lane and item.key or false, item.attempts, item.reason, item.at}
end
return letters
