-- The last argument is the time in ms, on this server's clock, until which the caller waits for the reply; empty
-- if the caller does not know this clock. A request stays in its socket while the server stands still. Too late
-- it is refused: its caller was told that the outcome is not known, and has gone on.
if ARGV[#ARGV] ~= '' and time[1] * 1000 + time[2] / 1000 > ARGV[#ARGV] + 0 then
  return redis.error_reply('LATE the caller no longer waits for the reply')
end
