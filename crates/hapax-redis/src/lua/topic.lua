-- The second part of a body, which begins with the tenant: each part is `<length>:<bytes>`.
local function topic_of(id)
  local body = call('HGET', BODIES, id) or ''
  local length, start = string.match(body, '^(%d+):()')
  if not length then return '' end
  length, start = string.match(body, '^(%d+):()', start + length)
  return length and string.sub(body, start, start + length - 1) or ''
end
