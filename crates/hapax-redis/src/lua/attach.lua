-- KEYS: job; ARGV: last offset already read, maximum number of entries
local call = redis.call
local now = call('HGET', KEYS[1], 'now')
if not now then return false end
local last, top, first = string.match(now, '^(%d+) %d+ (%d+) [01] replid:%x+ (%d+) %S+$')
if not last then return redis.error_reply('CORRUPT the job was not written by hapax') end
local from = math.max(ARGV[1] + 1, first)
local to = math.min(last, from + ARGV[2] - 1)
local entries = {}
for page = from, to, 1000 do
  local fields = {}
  for offset = page, math.min(to, page + 999) do fields[#fields + 1] = '' .. offset end
  for _, entry in ipairs(call('HMGET', KEYS[1], unpack(fields))) do
    entries[#entries + 1] = entry
  end
end
local state = false
if top + 0 < first + 0 then
  state = call('HGET', KEYS[1], 'state')
elseif top + 0 < from or top + 0 > to then
  state = call('HGET', KEYS[1], top)
end
return {now, state, call('PTTL', KEYS[1]), from, entries}
