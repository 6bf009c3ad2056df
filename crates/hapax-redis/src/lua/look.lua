if foreign then return {'foreign', redis.call('PTTL', KEYS[1])} end
if not stored then return false end
local print_at = at + token_size
local value_at = print_at + print_size
local value = ''
if phase == 'S' then value = string.sub(stored, value_at) end
return {phase, fence, attempt, now - granted, lease_end - now, expires - now, value,
  string.sub(stored, print_at, value_at - 1), string.sub(stored, at, print_at - 1)}
