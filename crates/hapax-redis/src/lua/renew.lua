-- ARGV: token, lease in ms
local held = index_names('h' .. ARGV[1], nil, -1)
for _, found in ipairs(held) do
  local id = id_of_name(found)
  local item = item_of(id)
  if item.state == 'W' then
    -- The lease lapsed, and the item was not leased to another token since.
    call('ZREM', READY, id)
    call('ZREM', LATER, id)
    call('ZADD', INDEX, 0, index_name('f', item.tenant, id))
    item.state = 'F'
    save_item(id, item)
  end
  call('ZADD', LEASED, text(now + ARGV[2]), id)
end
return #held
