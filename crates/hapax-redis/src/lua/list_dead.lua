-- ARGV: tenant or empty, last id already listed or empty, maximum number
local prefix = ARGV[1] == '' and 'x' or 'y' .. ARGV[1]
-- The second part of a body, which begins with the tenant: each part is `<length>:<bytes>`.
local function topic_of(id)
  local body = call('HGET', BODIES, id) or ''
  local length, start = string.match(body, '^(%d+):()')
  if not length then return '' end
  length, start = string.match(body, '^(%d+):()', start + length)
  return length and string.sub(body, start, start + length - 1) or ''
end
local dead = {}
for i, found in ipairs(index_names(prefix, ARGV[2] ~= '' and prefix .. ARGV[2] or nil, ARGV[3])) do
  local id = id_of_name(found)
  local item = item_of(id)
  dead[i] = {id, item.lane and item.key or false, item.attempts, item.reason, item.at, topic_of(id)}
end
return dead
