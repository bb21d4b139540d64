-- Makes all later numbers greater than a number, also those for other locks that share the key.
--
-- Inputs:    the number, which is not greater than GREATEST.
-- Returns:   the last number drawn before, as a text.
local last = last_drawn()
if not last then
    return no_greater_number()
end
if last < tonumber(ARGV[1]) then
    redis.call('SET', LAST, ARGV[1])
end
return text(last)
