-- ARGV: token, forget or keep, channel, digest
if phase == 'F' and ARGV[2] == 'keep' then return fence + 0 end
if phase ~= 'P' then return false end
if ARGV[2] == 'forget' or retention + 0 == 0 then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], string.format('hapax1 F %s %s %s %s %s %.0f %s %s\n',
    fence, attempt, granted, lease_end, retention, now + retention, token_size, print_size)
    .. string.sub(stored, at), 'PX', retention)
end
-- Only a hint: a user who may not publish has given back all the same.
redis.pcall('PUBLISH', ARGV[3], ARGV[4])
return fence + 0
