-- Long path of an append, behind append.lua. The partition head is one hash:
--   history  replication id under which the partition was last written
--   turns    where in the tail each replication id began: <epoch>@<stream id>,…
--   epoch    last epoch that was given
--   swept    when the tail was last swept, in ms
--   cut      stream id of the last pointer that was swept away
--   replicas 1 if the server had replicas when the partition was written: then a new replication id may be
--            that of a promoted replica
--   keep     longest retention of this era; kept: of the era before; era: when this era began, in ms
-- The head is read only where a job begins, where the replication id has changed, and for every 64th entry.
local function add_epoch(spans, number, mark, from, below)
  local kept = {}
  for span, first in string.gmatch(spans, '(%d+[@!]([%d-]+))') do
    if not below or first + 0 < below then kept[#kept + 1] = span end
  end
  kept[#kept + 1] = number .. mark .. from
  if #kept > 16 then table.remove(kept, 1) end
  return table.concat(kept, ',')
end

local replication = call('INFO', 'replication')
local present = string.sub(string.match(replication, 'replid:%x+'), 1, 23)
local head
if history ~= present or last % 64 < #offsets then
  head = call('HMGET', KEYS[1], 'history', 'turns', 'epoch', 'swept', 'keep', 'kept', 'era', 'replicas')
end
local id
for _, offset in ipairs(offsets) do
  local new = call('XADD', KEYS[2], '*', offset, ARGV[1])
  id = id or new
end

if head then
  local ms, n = string.match(id, '(%d+)-(%d+)')
  ms = ms + 0
  local changes = {}
  local function change(name, value)
    changes[#changes + 1] = name
    changes[#changes + 1] = value
  end
  if not head[8] and not string.find(replication, 'connected_slaves:0', 1, true) then
    change('replicas', '1')
  end
  if history ~= present then
    local number = math.max(epoch_of(ms, n, present), (head[3] or 0) + 1)
    if head[1] ~= present then
      change('history', present)
      change('turns', add_epoch(head[2] or '', string.format('%.0f', number), '@', id))
      number = number + 1
    end
    number = string.format('%.0f', number)
    change('epoch', number)
    if epochs then
      -- `!`: acknowledged entries may be missing before this one. A restarted server has them all if they were in
      -- its append-only file; a promoted replica, which knows its master's id as replid2, may lack some.
      local lossy = head[8] or string.find(replication, string.gsub(history, 'replid:', 'replid2:'), 1, true)
        or string.find(call('INFO', 'persistence'), 'aof_enabled:0', 1, true)
      epochs = add_epoch(epochs, number, lossy and '!' or '@', offsets[1], offsets[1] + 0)
    else
      epochs = number .. '@1'
    end
  end
  -- A pointer is kept for as long as its job may be kept: the longest retention of an era counts in the
  -- next era too, and an era lasts at least that long.
  local retention, keep, kept = ARGV[2] + 0, (head[5] or 0) + 0, (head[6] or 0) + 0
  if ms > (head[7] or 0) + math.max(keep, kept) then
    keep, kept = retention, keep
    change('keep', ARGV[2])
    change('kept', string.format('%.0f', kept))
    change('era', string.format('%.0f', ms))
  elseif retention > keep then
    keep = retention
    change('keep', ARGV[2])
  end
  if ms >= (head[4] or 0) + 1000 then
    change('swept', string.format('%.0f', ms))
    local oldest = string.format('%.0f-0', math.max(ms - math.max(keep, kept), 1))
    local gone = call('XREVRANGE', KEYS[2], '(' .. oldest, '-', 'COUNT', 1)
    if gone[1] then
      call('XTRIM', KEYS[2], 'MINID', oldest)
      change('cut', gone[1][1])
    end
  end
  if #changes > 0 then call('HSET', KEYS[1], unpack(changes)) end
end

local trimmed = {}
local excess = math.min(last - ARGV[3] - first + 1, 1000)
-- A much smaller maximum than before is reached over several appends.
for offset = first, first + excess - 1 do trimmed[#trimmed + 1] = '' .. offset end
local now = string.format('%.0f %s %s %s %s %.0f %s', last, seq, top, closed, present,
  first + #trimmed, epochs)
call('HSET', KEYS[3], 'now', now, unpack(writes))
if #trimmed > 0 then
  if top - first >= 0 and top - first < #trimmed then
    call('HSET', KEYS[3], 'state', call('HGET', KEYS[3], top))
  end
  call('HDEL', KEYS[3], unpack(trimmed))
end
call('PEXPIRE', KEYS[3], ARGV[2])
-- The message is only a hint and is published last: the step also succeeds for a user without PUBLISH.
redis.pcall('PUBLISH', ARGV[4], ARGV[5])
answers[1] = epochs
return answers
