-- What is stored under the key, and the time. Every script about claims starts with this.
--
-- A row is one string: a header of one line, then token, fingerprint and value as they are.
--   hapax1 <phase> <fence> <attempt> <granted> <lease_end> <retention> <expires> <#token> <#fingerprint>\n
-- Phases: P pending, S settled, F failed. Times in ms; the fingerprint is empty for none, else "=" and its text.
-- Anything else under the key is a foreign writer's, whatever its type, and counts as held.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stored = redis.pcall('GET', KEYS[1])
local absent = not stored
local foreign = false
local phase, fence, attempt, granted, lease_end, retention, expires, token_size, print_size, at
if type(stored) == 'table' then
  if not string.find(stored.err, 'WRONGTYPE', 1, true) then return stored end
  foreign = true
elseif stored then
  phase, fence, attempt, granted, lease_end, retention, expires, token_size, print_size, at =
    string.match(stored, '^hapax1 (%u) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)\n()')
  if not phase then
    foreign = true
  elseif now >= expires + 0 then
    -- Redis itself forgets a moment later.
    stored = false
  end
end
