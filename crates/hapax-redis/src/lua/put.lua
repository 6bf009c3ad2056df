-- ARGV: verbatim, value, expectation, expected version, TTL in ms or empty, new version
local row = ARGV[2]
local new_version = ARGV[6]
if ARGV[1] == '1' then
  new_version = redis.sha1hex(row)
else
  -- The reply to the first attempt was lost: this version is already stored.
  if version == new_version then return {version, created} end
  row = 'hapax-record1 ' .. new_version .. (stored and ' 0\n' or ' 1\n') .. row
end
if ARGV[3] == 'absent' and stored then return false end
if ARGV[3] == 'version' and version ~= ARGV[4] then return false end
if ARGV[5] == '0' then
  redis.call('DEL', KEYS[1])
elseif ARGV[5] ~= '' then
  redis.call('SET', KEYS[1], row, 'PX', ARGV[5])
elseif stored then
  redis.call('SET', KEYS[1], row, 'KEEPTTL')
else
  redis.call('SET', KEYS[1], row)
end
return {new_version, stored and '0' or '1'}
