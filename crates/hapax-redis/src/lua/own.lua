-- ARGV[1] is the mark with the token. False: that is not the owner's, and nothing is changed.
if foreign or not stored or string.sub(stored, 1, #ARGV[1]) ~= ARGV[1] then
  return false
end
