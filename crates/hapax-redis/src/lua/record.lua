-- Reads the record under the key and its version. Every script about records starts with this.
--
--   hapax-record1 <version> <1 if this version created the record, else 0>\n<value>
-- A verbatim record (ARGV[1] is 1) is the value alone; its version is the SHA-1 of the value.
-- GET fails for other types before anything is written.
local stored = redis.call('GET', KEYS[1])
local version, at
if stored then
  if ARGV[1] == '1' then
    version, at = redis.sha1hex(stored), 1
  else
    version, at = string.match(stored, '^hapax%-record1 (%x+) [01]\n()')
    if not version then
      return redis.error_reply('CORRUPT the record was not written by hapax')
    end
  end
end
