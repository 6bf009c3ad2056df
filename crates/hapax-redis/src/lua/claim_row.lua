-- Reads the claim row under the key. The format is documented in lib.rs:
--   hapax1 <#token> <token> <phase> <fence> <attempt> <granted> <since> <lease> <retention> <#fingerprint>\n<fingerprint><value>
-- Phases: P pending, S settled, F failed. `since` is the time of the last renewal (P) or of the end (S, F).
-- Times are in ms. The fingerprint is empty for none, else "=" and its text.
-- Every other value under the key, of whatever type, was written by a foreign program and counts as held.
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stored = redis.pcall('GET', KEYS[1])
local foreign = false
local token_size, token_at, phase, fence, attempt, granted, since, lease, retention
local fingerprint_size, fingerprint_at, expires
if type(stored) == 'table' then
  if not string.find(stored.err, 'WRONGTYPE', 1, true) then return stored end
  foreign = true
elseif stored then
  token_size, token_at = string.match(stored, '^hapax1 (%d+) ()')
  if token_size then
    phase, fence, attempt, granted, since, lease, retention, fingerprint_size, fingerprint_at =
      string.match(stored, '^ (%u) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)\n()', token_at + token_size)
  end
  if phase then
    expires = since + retention
    if phase == 'P' then expires = expires + lease end
    -- Redis removes an expired key a moment later than this.
    if now >= expires then stored = false end
  else
    foreign = true
  end
end
