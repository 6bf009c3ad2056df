-- ARGV: tenant or empty, last id already listed or empty, maximum number
local prefix = ARGV[1] == '' and 'x' or 'y' .. ARGV[1]
local dead = {}
for i, found in ipairs(index_names(prefix, ARGV[2] ~= '' and prefix .. ARGV[2] or nil, ARGV[3])) do
  local id = id_of_name(found)
  local item = item_of(id)
  dead[i] = {id, item.lane and item.key or false, item.attempts, item.reason, item.at}
end
return dead
