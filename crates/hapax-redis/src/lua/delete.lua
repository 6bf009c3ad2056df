-- ARGV: verbatim, expectation, expected version
if not stored then return 'missing' end
if ARGV[2] == 'absent' or (ARGV[2] == 'version' and version ~= ARGV[3]) then return 'conflict' end
-- The marker comes last: a full server accepts it only from a script that has written already.
redis.call('DEL', KEYS[1])
return mark('done')
