if not stored then return false end
return {string.sub(stored, at), version, redis.call('PTTL', KEYS[1])}
