-- ARGV: wake-up channel, queue digest, tenant or empty, id, requeue or discard
local id = ARGV[4]
local item = item_of(id)
if not item or item.state ~= 'X' or (ARGV[3] ~= '' and ARGV[3] ~= item.tenant) then return '0' end
call('ZREM', INDEX, index_name('x', '', id), index_name('y', item.tenant, id))
item.at, item.reason, item.blocks = nil, nil, nil
if ARGV[5] == 'requeue' then
  call('ZADD', INDEX, 0, index_name('a', '', id, item), 0, index_name('t', item.tenant, id, item))
  if item.lane then call('ZADD', INDEX, 0, index_name('l', item.lane, id, item)) end
  item.attempts, item.due = 0, now
  make_waiting(id, item)
else
  call('HDEL', ITEMS, id)
  call('HDEL', BODIES, id)
  if item.lane then
    call('ZREM', INDEX, index_name('l', item.lane, id, item))
    schedule_lane(item.lane)
  end
end
wake(ARGV[1], ARGV[2])
return mark('1')
