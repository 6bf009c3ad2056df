-- ARGV: wake-up channel, queue digest, token; then for each outcome: id, a(ck) r(etry) l(eave the lane and retry)
-- or b(ury), retention or delay in ms, 1 if the attempt counts or the dead item blocks its lane, reason
remove_expired((#ARGV - 3) / 5)
local token = ARGV[3]

local function acknowledge(id, item, retention)
  call('HDEL', BODIES, id)
  call('ZREM', INDEX, index_name('a', '', id, item), index_name('t', item.tenant, id, item))
  if item.lane then call('ZREM', INDEX, index_name('l', item.lane, id, item)) end
  if retention > 0 then
    save_item(id, {state = 'D', token = token, ends = now + retention})
    call('ZADD', DONE, text(now + retention), id)
  else
    call('HDEL', ITEMS, id)
  end
  if item.lane then schedule_lane(item.lane) end
end

-- Adds a reason as the first line, as `queue::reasons::add` of hapax-core does, and keeps ten of them.
local function add_reason(item, reason, counts)
  local stored = item.reason or ''
  if stored == '' then
    item.reason = reason
  elseif reason ~= '' and (counts or newest_reason(item) ~= reason) then
    local line_end = 0
    for _ = 1, 9 do
      line_end = string.find(stored, '\n', line_end + 1, true)
      if not line_end then break end
    end
    item.reason = reason .. '\n' .. (line_end and string.sub(stored, 1, line_end - 1) or stored)
  end
end

local function bury(id, item, blocks, reason)
  add_reason(item, reason, true)
  item.state, item.at, item.blocks = 'X', now, blocks
  call('ZREM', INDEX, index_name('a', '', id, item), index_name('t', item.tenant, id, item))
  call('ZADD', INDEX, 0, index_name('x', '', id), 0, index_name('y', item.tenant, id))
  if item.lane and not blocks then call('ZREM', INDEX, index_name('l', item.lane, id, item)) end
  save_item(id, item)
  if item.lane then schedule_lane(item.lane) end
end

local answers = {}
for at = 4, #ARGV, 5 do
  local id, outcome, ms, flag = ARGV[at], ARGV[at + 1], ARGV[at + 2] + 0, ARGV[at + 3] == '1'
  local item = item_of(id)
  local done = 0
  if item and item.token == token then
    if item.state == 'D' then
      if outcome == 'a' and item.ends > now then done = 1 end
    else
      done = 1
      end_lease(id, item)
      if outcome == 'a' then
        acknowledge(id, item, ms)
      elseif outcome == 'b' then
        bury(id, item, flag, ARGV[at + 4])
      else
        if not flag then item.attempts = item.attempts - 1 end
        item.due = now + ms
        add_reason(item, ARGV[at + 4], flag)
        local left_lane
        if outcome == 'l' and item.lane then
          left_lane = item.lane
          call('ZREM', INDEX, index_name('l', left_lane, id, item))
          item.lane, item.key = nil, nil
        end
        make_waiting(id, item)
        if left_lane then schedule_lane(left_lane) end
      end
    end
  end
  answers[#answers + 1] = done
end
wake(ARGV[1], ARGV[2])
return answers
