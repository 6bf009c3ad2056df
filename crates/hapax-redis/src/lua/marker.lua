-- The last key is the marker of this call, and the last argument but one is the marker's lifetime in ms, or empty
-- for a call without a marker. A call that was applied leaves its answer there. Repeated, because its reply was
-- lost, it returns that answer and writes nothing: others may have written since.
local marker_ms = ARGV[#ARGV - 1]
if marker_ms ~= '' then
  local answer = redis.call('GET', KEYS[#KEYS])
  if answer then return answer end
end
local function mark(answer)
  if marker_ms ~= '' then redis.call('SET', KEYS[#KEYS], answer, 'PX', marker_ms) end
  return answer
end
