if foreign then return {'foreign', redis.call('PTTL', KEYS[1])} end
if not stored then return false end
local value_at = fingerprint_at + fingerprint_size
local value = ''
-- A list needs no values, and they may be large.
if phase == 'S' and not ARGV[1] then value = string.sub(stored, value_at) end
return {phase, fence, attempt, now - granted, since + lease - now, expires - now, value,
  string.sub(stored, fingerprint_at, value_at - 1), string.sub(stored, token_at, token_at + token_size - 1),
  retention}
