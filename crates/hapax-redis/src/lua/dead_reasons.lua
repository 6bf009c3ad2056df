-- ARGV: tenant or empty, last id already counted or empty, how many to count
-- Returns each reason with its number and its first and last time, and the last id if there may be more.
local prefix = ARGV[1] == '' and 'x' or 'y' .. ARGV[1]
local names = index_names(prefix, ARGV[2] ~= '' and prefix .. ARGV[2] or nil, ARGV[3])
local counts, reasons = {}, {}
for _, found in ipairs(names) do
  local item = item_of(id_of_name(found))
  local reason = newest_reason(item)
  local count = counts[reason]
  if count then
    count[2], count[3], count[4] = count[2] + 1, math.min(count[3], item.at), math.max(count[4], item.at)
  else
    counts[reason] = {reason, 1, item.at, item.at}
    reasons[#reasons + 1] = counts[reason]
  end
end
return {reasons, #names == ARGV[3] + 0 and id_of_name(names[#names]) or ''}
