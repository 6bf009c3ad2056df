if foreign then
  return {'busy', redis.call('PTTL', KEYS[1])}
end
local new_lease, new_fingerprint = string.match(ARGV[2], '^(%d+) %d+ %d+\n(.*)$')
local new_attempt = 1
if stored then
  if string.sub(stored, fingerprint_at, fingerprint_at + fingerprint_size - 1) ~= new_fingerprint then
    return {'mismatch'}
  end
  if phase == 'S' then
    return {'settled', expires - now, string.sub(stored, fingerprint_at + fingerprint_size)}
  end
  if phase == 'P' then
    if string.sub(stored, 1, #ARGV[1]) == ARGV[1] then
      redis.call('SET', KEYS[1], string.format('%sP %s %s %s %s %s %s %s\n%s', ARGV[1], fence,
        attempt, granted, ms, new_lease, retention, fingerprint_size, new_fingerprint),
        'PX', string.format('%.0f', new_lease + retention))
      return {'granted', fence, attempt}
    end
    local lease_left = since + lease - now
    if lease_left > 0 then
      return {'busy', lease_left}
    end
    if ARGV[5] ~= '1' then
      return {'unknown', -lease_left}
    end
  end
  new_attempt = string.format('%.0f', attempt + 1)
end
-- Fences grow even where the clock goes back.
local new_fence = clock
if phase and fence + 1 > clock + 0 then new_fence = string.format('%.0f', fence + 1) end
redis.call('SET', KEYS[1], ARGV[1] .. 'P ' .. new_fence .. ' ' .. new_attempt .. ' ' .. ms .. ' ' .. ms
  .. ' ' .. ARGV[2], ARGV[3], ARGV[4])
return {'granted', new_fence, new_attempt}
