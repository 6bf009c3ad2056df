-- KEYS: partition head, partition tail
-- ARGV: epoch and stream id of the position (both empty for the start, $ for the end), maximum number of
-- entries
local call = redis.call
local head = call('HMGET', KEYS[1], 'turns', 'cut')
local turns, cut = head[1] or '', head[2] or '0-0'
local epoch = string.match(turns, '(%d+)@[%d-]+$') or '0'
if ARGV[1] == '$' then
  local newest = call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
  return {epoch, newest[1] and newest[1][1] or cut, 0, {}}
end
local function before(a, b)
  local a_ms, a_seq = string.match(a, '(%d+)-(%d+)')
  local b_ms, b_seq = string.match(b, '(%d+)-(%d+)')
  if a_ms ~= b_ms then return a_ms + 0 < b_ms + 0 end
  return a_seq + 0 < b_seq + 0
end
local from, empty, lost = '-', cut, 0
if ARGV[1] ~= '' then
  local known, rewound = ARGV[1] == '0', nil
  for turn, id in string.gmatch(turns, '(%d+)@([%d-]+)') do
    known = known or turn == ARGV[1]
    -- Entries after this id under the previous replication id were lost, and their ids may be used again.
    if turn + 0 > ARGV[1] + 0 and not before(ARGV[2], id) then
      rewound = id
      break
    end
  end
  if not known then
    lost = 1
  elseif rewound then
    from = rewound
    if not before(cut, rewound) then lost = 1 end
  else
    from, empty = '(' .. ARGV[2], ARGV[2]
    if before(ARGV[2], cut) then lost = 1 end
  end
end
return {epoch, empty, lost, call('XRANGE', KEYS[2], from, '+', 'COUNT', ARGV[3])}
