-- ARGV: channel, digest, token; then for each outcome: id, a(ck) r(etry) or b(ury), for how many ms it is
-- remembered or waits, 1 where it counts or blocks, reason
forget_done()
local token = ARGV[3]

local function acknowledge(id, item, remember)
  call('HDEL', BODIES, id)
  call('ZREM', INDEX, name('a', '', id, item), name('t', item.tenant, id, item))
  if item.lane then call('ZREM', INDEX, name('l', item.lane, id, item)) end
  if remember > 0 then
    keep(id, {state = 'D', token = token, ends = now + remember})
    call('ZADD', DONE, text(now + remember), id)
  else
    call('HDEL', ITEMS, id)
  end
  if item.lane then settle(item.lane) end
end

local function bury(id, item, blocks, reason)
  item.state, item.at, item.reason, item.blocks = 'X', now, reason, blocks
  call('ZREM', INDEX, name('a', '', id, item), name('t', item.tenant, id, item))
  call('ZADD', INDEX, 0, name('x', '', id), 0, name('y', item.tenant, id))
  if item.lane and not blocks then call('ZREM', INDEX, name('l', item.lane, id, item)) end
  keep(id, item)
  if item.lane then settle(item.lane) end
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
      let_go(id, item)
      if outcome == 'a' then
        acknowledge(id, item, ms)
      elseif outcome == 'b' then
        bury(id, item, flag, ARGV[at + 4])
      else
        if not flag then item.attempts = item.attempts - 1 end
        item.due = now + ms
        waits(id, item)
      end
    end
  end
  answers[#answers + 1] = done
end
wake(ARGV[1], ARGV[2])
return answers
