-- ARGV: token, lease in ms
local held = names('h' .. ARGV[1], nil, -1)
for _, found in ipairs(held) do
  local id = id_in(found)
  local item = item_of(id)
  if item.state == 'W' then
    -- It lapsed, and nobody was given it since.
    call('ZREM', READY, id)
    call('ZREM', LATER, id)
    call('ZADD', INDEX, 0, name('f', item.tenant, id))
    item.state = 'F'
    keep(id, item)
  end
  call('ZADD', LEASED, text(now + ARGV[2]), id)
end
return #held
