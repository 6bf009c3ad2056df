-- KEYS: job; ARGV: highest seq wanted, offset to begin at, seq of the best entry so far or empty
-- Returns `now`, the offset and seq of a better entry if there is one, and the offset to go on at.
-- Entries have no index by seq, so they are read here, where payloads cost no transfer.
local call = redis.call
local now = call('HGET', KEYS[1], 'now')
if not now then return false end
local last, first = string.match(now, '^(%d+) %d+ %d+ [01] replid:%x+ (%d+) %S+$')
if not last then return redis.error_reply('CORRUPT the job was not written by hapax') end
last = last + 0
local from, wanted, best = math.max(ARGV[2] + 0, first + 0), ARGV[1] + 0, tonumber(ARGV[3])
local at, found, bytes = 0, false, 0
-- One call reads a few megabytes, so that it does not hold up the server.
while from <= last and bytes < 4194304 do
  local fields = {}
  for offset = from, math.min(last, from + 15) do fields[#fields + 1] = '' .. offset end
  for i, entry in ipairs(call('HMGET', KEYS[1], unpack(fields))) do
    if not entry then return redis.error_reply('CORRUPT the job was not written by hapax') end
    local seq = string.match(entry, '^%d+')
    bytes = bytes + #entry + 64
    if seq + 0 <= wanted and (not best or seq + 0 > best) then
      best, at, found = seq + 0, from + i - 1, seq
    end
  end
  from = from + #fields
end
return {now, at, found, from}
