-- ARGV: tenant or nothing
lapse(1000)
local function count(start)
  return call('ZLEXCOUNT', INDEX, '[' .. start, '(' .. start .. '~')
end
local live, flying, dead = 'a', nil, 'x'
if ARGV[1] ~= '' then live, flying, dead = 't' .. ARGV[1], 'f' .. ARGV[1], 'y' .. ARGV[1] end
flying = flying and count(flying) or call('ZCOUNT', LEASED, '(' .. text(now), '+inf')
local oldest = names(live, nil, 1)[1]
local age = oldest and (micros - string.sub(oldest, #live + 1, #live + 16)) / 1000
return {count(live) - flying, flying, count(dead), age and math.max(0, math.floor(age)) or -1}
