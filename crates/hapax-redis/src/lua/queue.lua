-- KEYS: items, bodies, ready, later, leased, done, index
-- What every script about queues begins with.
--
--   items   id → MessagePack of an item (below); `last` → the last number that was given
--   bodies  id → what the client wrote; scripts never look into it
--   ready   id by place: what can be handed out. Of items with one key only the first
--   later   id by time: the same, but not due before then
--   leased  id by the end of the lease
--   done    id by the time at which it is forgotten
--   index   names in their order, all with score 0:
--     a<place><id>          everything that waits or is in flight
--     t<tenant><place><id>  the same by tenant
--     l<lane><place><id>    what has a key, and holds back what follows
--     h<token><place><id>   what a token holds, until it is handed to another one
--     f<tenant><id>         what is in flight
--     x<id>, y<tenant><id>  dead letters
--
-- An item: state (W waits, F in flight, X dead, D done), place, due, attempts, fence, tenant, token, lane
-- and key where it has one; at, reason and blocks of a dead one; ends of a done one. Tenants, tokens
-- and lanes are digests of 32 characters, places numbers of 16.
-- A lapsed lease becomes W when somebody comes across it, and keeps its token until then and after.
local call = redis.call
-- A script that fails midway keeps what it wrote: all types are checked before.
for key = 1, 2 do call('HLEN', KEYS[key]) end
for key = 3, 7 do call('ZCARD', KEYS[key]) end
local ITEMS, BODIES, READY, LATER, LEASED, DONE, INDEX = unpack(KEYS)
local time = call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)
local arrived = false

local function text(number) return string.format('%.0f', number) end

local function item_of(id)
  local stored = call('HGET', ITEMS, id)
  return stored and cmsgpack.unpack(stored)
end

local function keep(id, item) call('HSET', ITEMS, id, cmsgpack.pack(item)) end

-- Places and fences grow, even where the clock does not.
local last = call('HGET', ITEMS, 'last') or 0
local function next_number()
  last = math.max(last + 1, micros)
  return last
end
local function keep_numbers() call('HSET', ITEMS, 'last', text(last)) end

local function name(kind, of, id, item)
  return kind .. of .. (item and text(item.place) or '') .. id
end

-- The first few names that begin like this, after one of them or from the start.
local function names(start, after, count)
  local from = after and '(' .. after or '[' .. start
  return call('ZRANGEBYLEX', INDEX, from, '(' .. start .. '~', 'LIMIT', 0, count)
end

local function id_in(found) return string.sub(found, -36) end

-- Lets something that waits, and that nothing holds back, be handed out when it is due.
local function line_up(id, item)
  if item.due <= now then
    arrived = true
    call('ZREM', LATER, id)
    call('ZADD', READY, text(item.place), id)
  else
    call('ZREM', READY, id)
    call('ZADD', LATER, text(item.due), id)
  end
end

-- After a change to something with a key: the first of its lane lines up if it waits, the next does not.
local function settle(lane)
  local found = names('l' .. lane, nil, 2)
  if found[2] then
    call('ZREM', READY, id_in(found[2]))
    call('ZREM', LATER, id_in(found[2]))
  end
  if found[1] then
    local id = id_in(found[1])
    local item = item_of(id)
    if item.state == 'W' then line_up(id, item) end
  end
end

local function waits(id, item)
  item.state = 'W'
  keep(id, item)
  if item.lane then settle(item.lane) else line_up(id, item) end
end

-- Ends what a token has of an item.
local function let_go(id, item)
  call('ZREM', LEASED, id)
  call('ZREM', READY, id)
  call('ZREM', LATER, id)
  call('ZREM', INDEX, name('h', item.token, id, item), name('f', item.tenant, id))
  item.token = nil
end

local function lapse(at_most)
  for _, id in ipairs(call('ZRANGEBYSCORE', LEASED, '-inf', text(now), 'LIMIT', 0, at_most)) do
    local item = item_of(id)
    call('ZREM', LEASED, id)
    call('ZREM', INDEX, name('f', item.tenant, id))
    item.due = now
    waits(id, item)
  end
end

local function forget_done()
  for _, id in ipairs(call('ZRANGEBYSCORE', DONE, '-inf', text(now), 'LIMIT', 0, 100)) do
    call('ZREM', DONE, id)
    call('HDEL', ITEMS, id)
  end
end

-- Only a hint, and the last thing: for a user who may not publish the step is done all the same.
local function wake(channel, digest)
  if arrived then redis.pcall('PUBLISH', channel, digest) end
end

