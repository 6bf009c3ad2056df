-- ARGV: token, maximum number of items, lease in ms, the time until which the caller waits
local token, left, ends = ARGV[1], ARGV[2] + 0, text(now + ARGV[3])
local answers = {}
local function add_answer(id, item)
  answers[#answers + 1] = {id, item.attempts, text(item.fence),
    math.max(0, micros - item.place), call('HGET', BODIES, id), item.lane and 1 or 0}
end

-- A repeated call: return what this token has leased already.
for _, held in ipairs(index_names('h' .. token, nil, -1)) do
  local id = id_of_name(held)
  local ends_now = call('ZSCORE', LEASED, id)
  if ends_now and ends_now + 0 > now then
    call('ZADD', LEASED, ends, id)
    add_answer(id, item_of(id))
  end
end
if #answers > 0 then return answers end

remove_expired(left)
requeue_lapsed(left + 100)
for _, id in ipairs(call('ZRANGEBYSCORE', LATER, '-inf', text(now), 'LIMIT', 0, left + 100)) do
  schedule(id, item_of(id))
end

local function lease_item(id, item)
  if item.token then call('ZREM', INDEX, index_name('h', item.token, id, item)) end
  item.state, item.token, item.fence = 'F', token, next_number()
  item.attempts = item.attempts + 1
  call('ZADD', LEASED, ends, id)
  call('ZADD', INDEX, 0, index_name('h', token, id, item), 0, index_name('f', item.tenant, id))
  save_item(id, item)
  add_answer(id, item)
  left = left - 1
end

local lanes = {}
for _, id in ipairs(call('ZRANGE', READY, 0, left - 1)) do
  local item = item_of(id)
  call('ZREM', READY, id)
  lease_item(id, item)
  if item.lane then lanes[#lanes + 1] = {'l' .. item.lane, index_name('l', item.lane, id, item)} end
end
-- Later items of the same lanes, as long as they wait and are due.
for _, lane in ipairs(lanes) do
  local start, after = lane[1], lane[2]
  while after and left > 0 do
    local found = index_names(start, after, math.min(left, 16))
    after = found[#found]
    for _, follower in ipairs(found) do
      local id = id_of_name(follower)
      local item = item_of(id)
      if not item or item.state ~= 'W' or item.due > now then
        after = nil
        break
      end
      lease_item(id, item)
    end
  end
end
if #answers > 0 then save_numbers() end
return answers
