-- KEYS: the names of all queues, ordered by the set; ARGV: a name to add, or nothing to read them
if ARGV[1] then return redis.call('ZADD', KEYS[1], 0, ARGV[1]) end
return redis.call('ZRANGE', KEYS[1], 0, -1)
