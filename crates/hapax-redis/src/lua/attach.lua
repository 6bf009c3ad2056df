-- KEYS: job; ARGV: last offset already read, maximum number of entries, maximum of their bytes (at least one
-- entry is read), 1 if the state is wanted
local call = redis.call
local now = call('HGET', KEYS[1], 'now')
if not now then return false end
local last, top, first = string.match(now, '^(%d+) %d+ (%d+) [01] replid:%x+ (%d+) %S+$')
if not last then return redis.error_reply('CORRUPT the job was not written by hapax') end
local from = math.max(ARGV[1] + 1, first)
local to = math.min(last, from + ARGV[2] - 1)
local entries, bytes, next, step = {}, 0, from, 4
-- The steps grow: large entries are not read in vain, and small ones take few calls.
while next <= to do
  local fields = {}
  for offset = next, math.min(to, next + step - 1) do fields[#fields + 1] = '' .. offset end
  next, step = next + #fields, math.min(step * 4, 1000)
  for _, entry in ipairs(call('HMGET', KEYS[1], unpack(fields))) do
    bytes = bytes + (entry and #entry or 0)
    if bytes > ARGV[3] + 0 and #entries > 0 then
      to = 0
      break
    end
    entries[#entries + 1] = entry
  end
end
local state = false
if ARGV[4] == '1' then
  state = call('HGET', KEYS[1], top + 0 < first + 0 and 'state' or top)
  if not state then return redis.error_reply('CORRUPT the job has no state') end
end
return {now, state, call('PTTL', KEYS[1]), from, entries}
