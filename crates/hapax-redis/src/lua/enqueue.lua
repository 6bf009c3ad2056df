-- ARGV: wake-up channel, queue digest; for each item: id, tenant, lane or empty, key, delay in ms, body
remove_expired((#ARGV - 4) / 6)
local answers = {}
for at = 3, #ARGV - 2, 6 do
  local id, tenant, lane = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local known = item_of(id)
  if known and (known.state ~= 'D' or known.ends > now) then
    answers[#answers + 1] = 0
  else
    if known then call('ZREM', DONE, id) end
    local item = {place = next_number(), due = now + ARGV[at + 4], attempts = 0, tenant = tenant}
    call('HSET', BODIES, id, ARGV[at + 5])
    call('ZADD', INDEX, 0, index_name('a', '', id, item), 0, index_name('t', tenant, id, item))
    if lane ~= '' then
      item.lane, item.key = lane, ARGV[at + 3]
      call('ZADD', INDEX, 0, index_name('l', lane, id, item))
    end
    make_waiting(id, item)
    answers[#answers + 1] = 1
  end
end
save_numbers()
wake(ARGV[1], ARGV[2])
return mark(table.concat(answers))
