-- KEYS: number of partitions; ARGV: configured number, 1 to store it if there is none
local stored = redis.call('GET', KEYS[1])
if not stored and ARGV[2] == '1' then
  redis.call('SET', KEYS[1], ARGV[1])
  stored = ARGV[1]
end
return stored
