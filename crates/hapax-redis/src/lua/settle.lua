-- ARGV: mark, channel, digest, value
local value_at = print_at + print_size
if phase == 'S' and string.sub(stored, value_at) == ARGV[4] then return fence end
if phase ~= 'P' then return false end
if retention + 0 == 0 then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], string.format('%sS %s %s %s %.0f %s %s %s\n', ARGV[1], fence, attempt,
    granted, now, lease, retention, print_size)
    .. string.sub(stored, print_at, value_at - 1) .. ARGV[4], 'PX', retention)
end
