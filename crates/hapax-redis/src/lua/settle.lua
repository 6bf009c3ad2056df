-- ARGV: row start, wake-up channel, key digest, value
local value_at = fingerprint_at + fingerprint_size
if phase == 'S' and string.sub(stored, value_at) == ARGV[4] then return fence end
if phase ~= 'P' then return false end
if retention + 0 == 0 then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], string.format('%sS %s %s %s %.0f %s %s %s\n', ARGV[1], fence, attempt,
    granted, now, lease, retention, fingerprint_size)
    .. string.sub(stored, fingerprint_at, value_at - 1) .. ARGV[4], 'PX', retention)
end
