-- ARGV: token, value, channel, digest
local value_at = at + token_size + print_size
if phase == 'S' and string.sub(stored, value_at) == ARGV[2] then return fence + 0 end
if phase ~= 'P' then return false end
if retention + 0 == 0 then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], string.format('hapax1 S %s %s %s %s %s %.0f %s %s\n',
    fence, attempt, granted, lease_end, retention, now + retention, token_size, print_size)
    .. string.sub(stored, at, value_at - 1) .. ARGV[2], 'PX', retention)
end
-- Only a hint: a user who may not publish has settled all the same.
redis.pcall('PUBLISH', ARGV[3], ARGV[4])
return fence + 0
