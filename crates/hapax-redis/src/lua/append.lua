-- KEYS: partition head, partition tail, job
-- ARGV: job, retention in ms, maximum number of entries, wake-up channel, key digest, `0 <replication id>` or
-- empty if the client does not know it; then for each event: identity, fingerprint, seq, 1 if it closes the
-- job, entry
--
-- A job is one hash, so that all of it has one retention and one type:
--   now            <last offset> <highest seq> <its offset> <closed> <replication id> <first offset> <epochs>
--   <offset>       entry as the client wrote it: <seq> <closes> <stage>\n<payload>
--   <seq>:<stage>  <offset of that event> <fingerprint>
--   state          entry with the highest seq, once that entry was trimmed
-- The replication id is the server's at the start of the last epoch, cut to `replid:` and 16 digits.
-- Offsets stay below 10^14, where Lua's implicit conversion of numbers to text is exact; epochs need %.0f.
-- Everything is read, and thereby its type checked, before the first write; the tail's type is checked by
-- the first write itself.
local call = redis.call
-- `now` of an open job contains this text if its last epoch began under the present replication id. That id
-- changes with every start and every promotion. `replid:` does not match `master_replid2:`, the previous id.
local open = ARGV[6]
if open == '' then
  open = '0 ' .. string.sub(string.match(call('INFO', 'replication'), 'replid:%x+'), 1, 23)
end

-- An epoch is made of a stream id, so that it grows, and of two digits of the server's replication id: while a demoted master
-- still takes writes, two servers may begin the same job in one millisecond, and must not call it the same epoch.
local function epoch_of(ms, n, replication_id)
  return ms * 1000 + n * 100 + tonumber(string.match(replication_id, 'replid:(%x%x%x)'), 16) % 100
end

local events = (#ARGV - 6) / 5
local row
if events == 1 then
  -- Short path for the common case: one new event, and no maintenance of the partition is due.
  row = call('HMGET', KEYS[3], 'now', ARGV[7])
  local last, seq, top, rest
  if row[1] and not row[2] then
    last, seq, top, rest = string.match(row[1], '^(%d+) (%d+) (%d+) (.*)')
    last = last + 1
    if string.find(rest, open, 1, true) == 1 and last % 64 > 0 and last <= ARGV[3] + 0 then
      last = '' .. last
      call('XADD', KEYS[2], '*', last, ARGV[1])
    else
      last = nil
    end
  elseif not row[2] and string.sub(ARGV[5], -1) ~= '0' then
    -- One new job in ten takes the long path, which maintains the partition's tail.
    local head = call('HMGET', KEYS[1], 'history', 'epoch', 'keep')
    if head[1] and '0 ' .. head[1] == open and ARGV[2] - head[3] <= 0 then
      last, seq, top = '1', ARGV[9], '1'
      local ms, n = string.match(call('XADD', KEYS[2], '*', last, ARGV[1]), '(%d+)-(%d+)')
      local epoch = math.max(epoch_of(ms, n, open), head[2] + 1)
      -- An epoch that exceeds its id's millisecond, because there were many ids in it or the clock went back, has to
      -- be stored.
      if n + 0 > 9 or epoch == head[2] + 1 then
        call('HSET', KEYS[1], 'epoch', string.format('%.0f', epoch))
      end
      rest = open .. string.format(' 1 %.0f@1', epoch)
    end
  end
  if last then
    if ARGV[9] + 0 >= seq + 0 then seq, top = ARGV[9], last end
    if ARGV[10] == '1' then rest = '1' .. string.sub(rest, 2) end
    call('HSET', KEYS[3], 'now', last .. ' ' .. seq .. ' ' .. top .. ' ' .. rest,
      ARGV[7], last .. ' ' .. ARGV[8], last, ARGV[11])
    call('PEXPIRE', KEYS[3], ARGV[2])
    redis.pcall('PUBLISH', ARGV[4], ARGV[5])
    return {rest, '+' .. last}
  end
else
  local fields = {'now'}
  for i = 1, events do fields[i + 1] = ARGV[i * 5 + 2] end
  row = call('HMGET', KEYS[3], unpack(fields))
end

local last, seq, top, closed, history, first, epochs = 0, -1, 0, '0', nil, 1, nil
if row[1] then
  last, seq, top, closed, history, first, epochs =
    string.match(row[1], '^(%d+) (%d+) (%d+) ([01]) (replid:%x+) (%d+) (%S+)$')
  if not last then return redis.error_reply('CORRUPT the job was not written by hapax') end
end
local answers, writes, offsets, fresh = {''}, {}, {}, {}
for i = 1, events do
  local at = i * 5 + 2
  local identity, mark = ARGV[at], ARGV[at + 1]
  local known = row[i + 1] or fresh[identity]
  if known then
    local offset = string.match(known, '^%d+')
    answers[i + 1] = known == offset .. ' ' .. mark and '=' .. offset or '!'
  elseif closed == '1' then
    answers[i + 1] = '.'
  else
    last = last + 1
    local offset = '' .. last
    known = offset .. ' ' .. mark
    fresh[identity] = known
    offsets[#offsets + 1] = offset
    local width = #writes
    writes[width + 1], writes[width + 2] = identity, known
    writes[width + 3], writes[width + 4] = offset, ARGV[at + 4]
    if ARGV[at + 2] + 0 >= seq + 0 then seq, top = ARGV[at + 2], offset end
    closed = ARGV[at + 3]
    answers[i + 1] = '+' .. offset
  end
end
if #offsets == 0 then
  answers[1] = epochs or ''
  return answers
end
