-- ARGV: mark, tail, EX or PX, lease + retention in that unit, 1 to take over
-- The mark is the start of a row up to its phase, the tail what follows its times: a vacant key,
-- which is the common case, is taken without computing anything.
local clock = time[1] .. string.sub('00000' .. time[2], -6)
local ms = string.sub(clock, 1, -4)
if redis.call('SET', KEYS[1], ARGV[1] .. 'P ' .. clock .. ' 1 ' .. ms .. ' ' .. ms .. ' ' .. ARGV[2],
    'NX', ARGV[3], ARGV[4]) then
  return clock
end
