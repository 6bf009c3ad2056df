-- ARGV: row start, wake-up channel, key digest
-- Releasing a lock is frequent, so this script reads neither the time nor the whole row.
local stored = redis.pcall('GET', KEYS[1])
if not stored then return false end
if type(stored) == 'table' then
  if string.find(stored.err, 'WRONGTYPE', 1, true) then return false end
  return stored
end
if string.sub(stored, 1, #ARGV[1]) ~= ARGV[1] then return false end
local fence = string.match(stored, '^P (%d+) ', #ARGV[1] + 1)
if not fence then return false end
redis.call('DEL', KEYS[1])
