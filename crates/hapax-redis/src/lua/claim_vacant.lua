-- ARGV: row start (up to the phase), row end (after the times), EX or PX, lease + retention in that unit,
-- 1 to take over an unknown claim, the time until which the caller waits
-- A vacant key is the common case: SET NX takes it without reading the row.
local clock = time[1] .. string.sub('00000' .. time[2], -6)
local ms = string.sub(clock, 1, -4)
if redis.call('SET', KEYS[1], ARGV[1] .. 'P ' .. clock .. ' 1 ' .. ms .. ' ' .. ms .. ' ' .. ARGV[2],
    'NX', ARGV[3], ARGV[4]) then
  return clock
end
