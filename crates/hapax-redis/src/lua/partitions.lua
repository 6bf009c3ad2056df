-- KEYS: where the number is; ARGV: ours, 1 to write it down where there is none
local stored = redis.call('GET', KEYS[1])
if not stored and ARGV[2] == '1' then
  redis.call('SET', KEYS[1], ARGV[1])
  stored = ARGV[1]
end
return stored
