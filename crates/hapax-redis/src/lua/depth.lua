-- ARGV: tenant or empty
requeue_lapsed(1000)
local function count(start)
  return call('ZLEXCOUNT', INDEX, '[' .. start, '(' .. start .. '~')
end
local active, in_flight, dead = 'a', nil, 'x'
if ARGV[1] ~= '' then active, in_flight, dead = 't' .. ARGV[1], 'f' .. ARGV[1], 'y' .. ARGV[1] end
in_flight = in_flight and count(in_flight) or call('ZCOUNT', LEASED, '(' .. text(now), '+inf')
local oldest = index_names(active, nil, 1)[1]
local age = oldest and (micros - string.sub(oldest, #active + 1, #active + 16)) / 1000
return {count(active) - in_flight, in_flight, count(dead), age and math.max(0, math.floor(age)) or -1}
