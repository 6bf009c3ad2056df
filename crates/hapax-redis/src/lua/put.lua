-- ARGV: verbatim, value, expectation, expected version, TTL in ms or empty, new version
local row = ARGV[2]
local new_version = ARGV[6]
if ARGV[1] == '1' then
  new_version = redis.sha1hex(row)
else
  row = 'hapax-record1 ' .. new_version .. (stored and ' 0\n' or ' 1\n') .. row
end
if ARGV[3] == 'absent' and stored then return false end
if ARGV[3] == 'version' and version ~= ARGV[4] then return false end
-- The marker comes first: a full server refuses it before the record is touched.
local answer = mark((stored and '0' or '1') .. new_version)
if ARGV[5] == '0' then
  redis.call('DEL', KEYS[1])
elseif ARGV[5] ~= '' then
  redis.call('SET', KEYS[1], row, 'PX', ARGV[5])
elseif stored then
  redis.call('SET', KEYS[1], row, 'KEEPTTL')
else
  redis.call('SET', KEYS[1], row)
end
return answer
