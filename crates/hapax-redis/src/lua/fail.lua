-- ARGV: row start, wake-up channel, key digest
if phase == 'F' then return fence end
if phase ~= 'P' then return false end
if retention + 0 == 0 then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], string.format('%sF %s %s %s %.0f %s %s %s\n', ARGV[1], fence, attempt,
    granted, now, lease, retention, fingerprint_size) .. string.sub(stored, fingerprint_at), 'PX', retention)
end
