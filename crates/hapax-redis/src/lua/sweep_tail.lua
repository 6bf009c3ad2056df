-- KEYS: partition head, partition tail; ARGV: maximum number of pointers
-- Removes pointers that are older than any job of the partition may be kept (`append_rest.lua` describes the head),
-- also where nothing is appended any more. `cut` tells readers of the tail what they have missed.
local head = redis.call('HMGET', KEYS[1], 'keep', 'kept')
if not head[1] then return 0 end
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local oldest = string.format('%.0f-0', math.max(now - math.max(head[1], head[2] or 0), 1))
local gone = redis.call('XRANGE', KEYS[2], '-', '(' .. oldest, 'COUNT', ARGV[1])
if #gone > 0 then
  local last = gone[#gone][1]
  local ms, n = string.match(last, '(%d+)-(%d+)')
  redis.call('XTRIM', KEYS[2], 'MINID', ms .. '-' .. string.format('%.0f', n + 1))
  redis.call('HSET', KEYS[1], 'cut', last)
end
return #gone
