-- ARGV: row start, lease in ms
if phase ~= 'P' then return false end
redis.call('SET', KEYS[1], string.format('%sP %s %s %s %.0f %s %s %s\n', ARGV[1], fence, attempt,
  granted, now, ARGV[2], retention, fingerprint_size) .. string.sub(stored, fingerprint_at),
  'PX', string.format('%.0f', ARGV[2] + retention))
return fence
