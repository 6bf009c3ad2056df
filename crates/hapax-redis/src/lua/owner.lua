-- ARGV[1] is the token. False: it is not the owner's, and nothing is changed.
if foreign or not stored or string.sub(stored, at, at + token_size - 1) ~= ARGV[1] then
  return false
end
