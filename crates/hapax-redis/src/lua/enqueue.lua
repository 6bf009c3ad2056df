-- ARGV: channel, digest; then for each item: id, tenant, lane or nothing, key, delay in ms, body
forget_done()
local answers = {}
for at = 3, #ARGV, 6 do
  local id, tenant, lane = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local known = item_of(id)
  if known and (known.state ~= 'D' or known.ends > now) then
    answers[#answers + 1] = 0
  else
    if known then call('ZREM', DONE, id) end
    local item = {place = next_number(), due = now + ARGV[at + 4], attempts = 0, tenant = tenant}
    call('HSET', BODIES, id, ARGV[at + 5])
    call('ZADD', INDEX, 0, name('a', '', id, item), 0, name('t', tenant, id, item))
    if lane ~= '' then
      item.lane, item.key = lane, ARGV[at + 3]
      call('ZADD', INDEX, 0, name('l', lane, id, item))
    end
    waits(id, item)
    answers[#answers + 1] = 1
  end
end
keep_numbers()
wake(ARGV[1], ARGV[2])
return answers
