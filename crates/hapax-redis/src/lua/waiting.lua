-- ARGV: tenant or empty, last name already listed or empty, maximum number
-- Returns items that wait or are in flight, the oldest first, and the name of the last one if there may be more.
local prefix = ARGV[1] == '' and 'a' or 't' .. ARGV[1]
local names = index_names(prefix, ARGV[2] ~= '' and ARGV[2] or nil, ARGV[3])
local items = {}
for i, found in ipairs(names) do
  local id = id_of_name(found)
  local item = item_of(id)
  local ends = call('ZSCORE', LEASED, id)
  items[i] = {id, item.lane and item.key or false, item.attempts, math.max(0, micros - item.place),
    ends and ends + 0 > now and 1 or 0, newest_reason(item), topic_of(id)}
end
return {items, #names == ARGV[3] + 0 and names[#names] or ''}
