-- The row under the key, if one is remembered.
--
-- A row is one string: a header of one line, then fingerprint and value as they are.
--   hapax1 <#token> <token> <phase> <fence> <attempt> <granted> <since> <lease> <retention> <#fingerprint>\n
-- Phases: P pending since the last renewal, S settled or F failed since then. Times in ms; the
-- fingerprint is empty for none, else "=" and its text.
-- Anything else under the key is a foreign writer's, whatever its type, and counts as held.
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stored = redis.pcall('GET', KEYS[1])
local foreign = false
local token_size, token_at, phase, fence, attempt, granted, since, lease, retention, print_size, print_at
local expires
if type(stored) == 'table' then
  if not string.find(stored.err, 'WRONGTYPE', 1, true) then return stored end
  foreign = true
elseif stored then
  token_size, token_at = string.match(stored, '^hapax1 (%d+) ()')
  if token_size then
    phase, fence, attempt, granted, since, lease, retention, print_size, print_at = string.match(
      stored, '^ (%u) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)\n()', token_at + token_size)
  end
  if phase then
    expires = since + retention
    if phase == 'P' then expires = expires + lease end
    -- Redis itself forgets a moment later.
    if now >= expires then stored = false end
  else
    foreign = true
  end
end
