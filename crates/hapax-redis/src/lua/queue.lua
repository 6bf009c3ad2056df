-- KEYS: items, bodies, ready, later, leased, done, index; perhaps a marker
-- Every script about queues starts with this.
--
-- A lane is the sequence of items with the same tenant and key, which are handed out in order.
--   items   hash: id → MessagePack of an item (below); `last` → last number that was given
--   bodies  hash: id → item as the client wrote it; scripts read its topic alone
--   ready   sorted set: id by place. Items that are due; of each lane only the first
--   later   sorted set: id by due time. The same for items that are not due yet
--   leased  sorted set: id by end of the lease
--   done    sorted set: id by end of the retention
--   index   sorted set of names, all with score 0, in lexical order:
--     a<place><id>          items that wait or are in flight
--     t<tenant><place><id>  the same by tenant
--     l<lane><place><id>    items of a lane that hold back later ones
--     h<token><place><id>   items leased under a token, until they are leased under another one
--     f<tenant><id>         items in flight
--     x<id>, y<tenant><id>  dead items
--
-- Fields of an item: state (W waits, F in flight, X dead, D done), place, due, attempts, fence, tenant,
-- token; lane and key if it has a key; reason if it failed, a line for each of the last ten times, the newest first;
-- at and blocks if it is dead; ends (end of the retention) if
-- it is done. Tenants, tokens and lanes are digests of 32 characters, places are numbers of 16 digits.
-- An item whose lease lapsed becomes W when a script finds it, and keeps its token.
local call = redis.call
-- Redis does not undo the writes of a script that fails: check all types before the first write.
for key = 1, 2 do call('HLEN', KEYS[key]) end
for key = 3, 7 do call('ZCARD', KEYS[key]) end
local ITEMS, BODIES, READY, LATER, LEASED, DONE, INDEX = unpack(KEYS)
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)
local became_due = false

local function text(number) return string.format('%.0f', number) end

local function item_of(id)
  local stored = call('HGET', ITEMS, id)
  return stored and cmsgpack.unpack(stored)
end

local function save_item(id, item) call('HSET', ITEMS, id, cmsgpack.pack(item)) end

-- Places and fences grow even where the clock goes back.
local last = call('HGET', ITEMS, 'last') or 0
local function next_number()
  last = math.max(last + 1, micros)
  return last
end
local function save_numbers() call('HSET', ITEMS, 'last', text(last)) end

local function index_name(kind, of, id, item)
  return kind .. of .. (item and text(item.place) or '') .. id
end

-- Names in the index with this prefix, after the given one or from the first.
local function index_names(start, after, count)
  local from = after and '(' .. after or '[' .. start
  return call('ZRANGEBYLEX', INDEX, from, '(' .. start .. '~', 'LIMIT', 0, count)
end

local function id_of_name(found) return string.sub(found, -36) end

-- Puts a waiting item that nothing holds back into `ready` or `later`.
local function schedule(id, item)
  if item.due <= now then
    became_due = true
    call('ZREM', LATER, id)
    call('ZADD', READY, text(item.place), id)
  else
    call('ZREM', READY, id)
    call('ZADD', LATER, text(item.due), id)
  end
end

-- After a change to a lane: schedules its first item if that waits, and unschedules the second. A name without an item
-- would hold back its lane for ever, and is removed: Redis may apply half of a script's writes after two crashes
-- (the finding `redis.torn_writes`).
local function schedule_lane(lane)
  local found = index_names('l' .. lane, nil, 2)
  if found[2] then
    call('ZREM', READY, id_of_name(found[2]))
    call('ZREM', LATER, id_of_name(found[2]))
  end
  if found[1] then
    local id = id_of_name(found[1])
    local item = item_of(id)
    if not item then
      local place_and_id = string.sub(found[1], -52)
      call('ZREM', INDEX, found[1], 'a' .. place_and_id)
      call('HDEL', BODIES, id)
      return schedule_lane(lane)
    end
    if item.state == 'W' then schedule(id, item) end
  end
end

local function make_waiting(id, item)
  item.state = 'W'
  save_item(id, item)
  if item.lane then schedule_lane(item.lane) else schedule(id, item) end
end

-- Removes all traces of an item's lease.
local function end_lease(id, item)
  call('ZREM', LEASED, id)
  call('ZREM', READY, id)
  call('ZREM', LATER, id)
  call('ZREM', INDEX, index_name('h', item.token, id, item), index_name('f', item.tenant, id))
  item.token = nil
end

local function requeue_lapsed(at_most)
  for _, id in ipairs(call('ZRANGEBYSCORE', LEASED, '-inf', text(now), 'LIMIT', 0, at_most)) do
    local item = item_of(id)
    call('ZREM', LEASED, id)
    call('ZREM', INDEX, index_name('f', item.tenant, id))
    item.due = now
    make_waiting(id, item)
  end
end

-- Forgets done items after their retention: more than `items` calls of this size can add, so that they do not
-- pile up.
local function remove_expired(items)
  local ids = call('ZRANGEBYSCORE', DONE, '-inf', text(now), 'LIMIT', 0, 100 + 2 * items)
  -- Lua unpacks a few thousand values at most.
  for from = 1, #ids, 500 do
    local to = math.min(#ids, from + 499)
    call('ZREM', DONE, unpack(ids, from, to))
    call('HDEL', ITEMS, unpack(ids, from, to))
  end
end

-- The message is only a hint and is published last: the step also succeeds for a user without PUBLISH.
local function wake(channel, digest)
  if became_due then redis.pcall('PUBLISH', channel, digest) end
end

