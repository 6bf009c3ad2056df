-- The record under the key and its version. Every script about records starts with this.
--
-- A record is one string: a header of one line, then the value as it is.
--   hapax-record1 <version> <1 where that version created it, else 0>\n
-- A verbatim record (ARGV[1] is 1) is the value alone; its version is a digest of it.
-- GET fails for other types before anything is written.
local stored = redis.call('GET', KEYS[1])
local version, created, at
if stored then
  if ARGV[1] == '1' then
    version, at = redis.sha1hex(stored), 1
  else
    version, created, at = string.match(stored, '^hapax%-record1 (%x+) ([01])\n()')
    if not version then
      return redis.error_reply('CORRUPT the record was not written by hapax')
    end
  end
end
