-- ARGV: verbatim, expectation, expected version
if not stored then return 'missing' end
if ARGV[2] == 'absent' or (ARGV[2] == 'version' and version ~= ARGV[3]) then return 'conflict' end
redis.call('DEL', KEYS[1])
return 'done'
