-- The rest of an append. A partition's head is one hash:
--   history turns  the server's history, and where in the tail each one began: <epoch>@<id>,…
--   epoch          the last one that was given
--   swept cut      when the tail was last swept, and the last pointer that was swept away
--   keep kept era  the longest lifetime of this era and of the one before, and when this one began
-- It is of interest only where a log begins, where the history has changed, and now and then.
local function turned(spans, number, from, below)
  local kept = {}
  for span, first in string.gmatch(spans, '(%d+@([%d-]+))') do
    if not below or first + 0 < below then kept[#kept + 1] = span end
  end
  kept[#kept + 1] = number .. '@' .. from
  if #kept > 16 then table.remove(kept, 1) end
  return table.concat(kept, ',')
end

local present = string.sub(string.match(call('INFO', 'replication'), 'replid:%x+'), 1, 23)
local head
if history ~= present or last % 64 < #offsets then
  head = call('HMGET', KEYS[1], 'history', 'turns', 'epoch', 'swept', 'keep', 'kept', 'era')
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
  if history ~= present then
    local number = math.max(ms * 1000 + n, (head[3] or 0) + 1)
    if head[1] ~= present then
      change('history', present)
      change('turns', turned(head[2] or '', string.format('%.0f', number), id))
      number = number + 1
    end
    number = string.format('%.0f', number)
    change('epoch', number)
    epochs = epochs and turned(epochs, number, offsets[1], offsets[1] + 0) or number .. '@1'
  end
  -- A pointer is kept for as long as its job may live: the longest lifetime of an era counts in the
  -- next one too, and an era lasts at least that long.
  local lifetime, keep, kept = ARGV[2] + 0, (head[5] or 0) + 0, (head[6] or 0) + 0
  if ms > (head[7] or 0) + math.max(keep, kept) then
    keep, kept = lifetime, keep
    change('keep', ARGV[2])
    change('kept', string.format('%.0f', kept))
    change('era', string.format('%.0f', ms))
  elseif lifetime > keep then
    keep = lifetime
    change('keep', ARGV[2])
  end
  if ms >= (head[4] or 0) + 1000 then
    change('swept', string.format('%.0f', ms))
    local oldest = string.format('%.0f-0', math.max(ms - math.max(keep, kept), 0))
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
-- A much smaller limit than before is reached over several appends.
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
-- Only a hint, and the last thing: for a user who may not publish the step is done all the same.
redis.pcall('PUBLISH', ARGV[4], ARGV[5])
answers[1] = epochs
return answers
