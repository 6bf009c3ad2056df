-- ARGV: channel, digest, tenant or nothing, id, requeue or discard
local id = ARGV[4]
local item = item_of(id)
if not item or item.state ~= 'X' or (ARGV[3] ~= '' and ARGV[3] ~= item.tenant) then return 0 end
call('ZREM', INDEX, name('x', '', id), name('y', item.tenant, id))
item.at, item.reason, item.blocks = nil, nil, nil
if ARGV[5] == 'requeue' then
  call('ZADD', INDEX, 0, name('a', '', id, item), 0, name('t', item.tenant, id, item))
  if item.lane then call('ZADD', INDEX, 0, name('l', item.lane, id, item)) end
  item.attempts, item.due = 0, now
  waits(id, item)
else
  call('HDEL', ITEMS, id)
  call('HDEL', BODIES, id)
  if item.lane then
    call('ZREM', INDEX, name('l', item.lane, id, item))
    settle(item.lane)
  end
end
wake(ARGV[1], ARGV[2])
return 1
