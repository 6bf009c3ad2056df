-- ARGV: token, how many at most, lease in ms
local token, left, ends = ARGV[1], ARGV[2] + 0, text(now + ARGV[3])
local answers = {}
local function answer(id, item)
  answers[#answers + 1] = {id, item.attempts, text(item.fence),
    math.max(0, micros - item.place), call('HGET', BODIES, id)}
end

-- Asked again.
for _, held in ipairs(names('h' .. token, nil, -1)) do
  local id = id_in(held)
  local until_now = call('ZSCORE', LEASED, id)
  if until_now and until_now + 0 > now then
    call('ZADD', LEASED, ends, id)
    answer(id, item_of(id))
  end
end
if #answers > 0 then return answers end

forget_done()
lapse(left + 100)
for _, id in ipairs(call('ZRANGEBYSCORE', LATER, '-inf', text(now), 'LIMIT', 0, left + 100)) do
  line_up(id, item_of(id))
end

local function hand_out(id, item)
  if item.token then call('ZREM', INDEX, name('h', item.token, id, item)) end
  item.state, item.token, item.fence = 'F', token, next_number()
  item.attempts = item.attempts + 1
  call('ZADD', LEASED, ends, id)
  call('ZADD', INDEX, 0, name('h', token, id, item), 0, name('f', item.tenant, id))
  keep(id, item)
  answer(id, item)
  left = left - 1
end

local lanes = {}
for _, id in ipairs(call('ZRANGE', READY, 0, left - 1)) do
  local item = item_of(id)
  call('ZREM', READY, id)
  hand_out(id, item)
  if item.lane then lanes[#lanes + 1] = {'l' .. item.lane, name('l', item.lane, id, item)} end
end
-- What follows them in their lanes, as long as it waits and is due.
for _, lane in ipairs(lanes) do
  local start, after = lane[1], lane[2]
  while after and left > 0 do
    local found = names(start, after, math.min(left, 16))
    after = found[#found]
    for _, follower in ipairs(found) do
      local id = id_in(follower)
      local item = item_of(id)
      if item.state ~= 'W' or item.due > now then
        after = nil
        break
      end
      hand_out(id, item)
    end
  end
end
if #answers > 0 then keep_numbers() end
return answers
