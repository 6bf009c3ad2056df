-- ARGV: tenant or empty, last id already looked at or empty, how many to look at, how many to list, 1 to list only
-- those with a reason, that reason
-- Returns the dead items, and the last id if there may be more.
local prefix = ARGV[1] == '' and 'x' or 'y' .. ARGV[1]
local names = index_names(prefix, ARGV[2] ~= '' and prefix .. ARGV[2] or nil, ARGV[3])
local dead, last, more = {}, nil, #names == ARGV[3] + 0
for _, found in ipairs(names) do
  local id = id_of_name(found)
  last = id
  local item = item_of(id)
  if ARGV[5] ~= '1' or newest_reason(item) == ARGV[6] then
    dead[#dead + 1] = {id, item.lane and item.key or false, item.attempts, item.reason or '', item.at, topic_of(id)}
    if #dead == ARGV[4] + 0 then
      more = true
      break
    end
  end
end
return {dead, more and last or ''}
