-- ARGV: token, lease
if phase ~= 'P' then return false end
local ttl = ARGV[2] + retention
redis.call('SET', KEYS[1], string.format('hapax1 P %s %s %s %.0f %s %.0f %s %s\n',
  fence, attempt, granted, now + ARGV[2], retention, now + ttl, token_size, print_size)
  .. string.sub(stored, at), 'PX', string.format('%.0f', ttl))
return fence + 0
