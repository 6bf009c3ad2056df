-- ARGV[1] is the start of a row with the caller's token. Returns false to a caller that does not own the claim.
if foreign or not stored or string.sub(stored, 1, #ARGV[1]) ~= ARGV[1] then
  return false
end
