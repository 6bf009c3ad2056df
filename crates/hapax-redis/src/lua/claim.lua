-- ARGV: token, lease, retention, fingerprint, 1 to take over, EX or PX, lease + retention in that unit
if foreign then
  return {'busy', redis.call('PTTL', KEYS[1])}
end
local new_fence = time[1] * 1000000 + time[2]
if phase and fence + 1 > new_fence then new_fence = fence + 1 end
local new_attempt = 1
if stored then
  local print_at = at + token_size
  if string.sub(stored, print_at, print_at + print_size - 1) ~= ARGV[4] then
    return {'mismatch'}
  end
  if phase == 'S' then
    return {'settled', expires - now, string.sub(stored, print_at + print_size)}
  end
  if phase == 'P' then
    if string.sub(stored, at, print_at - 1) == ARGV[1] then
      local ttl = ARGV[2] + retention
      redis.call('SET', KEYS[1], string.format('hapax1 P %s %s %s %.0f %s %.0f %s %s\n',
        fence, attempt, granted, now + ARGV[2], retention, now + ttl, token_size, print_size)
        .. string.sub(stored, at), 'PX', string.format('%.0f', ttl))
      return {'granted', fence, attempt}
    end
    if now < lease_end + 0 then
      return {'busy', lease_end - now}
    end
    if ARGV[5] ~= '1' then
      return {'unknown', now - lease_end}
    end
  end
  new_attempt = attempt + 1
end
local row = string.format('hapax1 P %.0f %.0f %.0f %.0f %s %.0f %d %d\n',
  new_fence, new_attempt, now, now + ARGV[2], ARGV[3], now + ARGV[2] + ARGV[3], #ARGV[1], #ARGV[4])
  .. ARGV[1] .. ARGV[4]
if absent then
  redis.call('SET', KEYS[1], row, 'NX', ARGV[6], ARGV[7])
else
  redis.call('SET', KEYS[1], row, ARGV[6], ARGV[7])
end
return {'granted', new_fence, new_attempt}
