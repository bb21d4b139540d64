-- Returns the request that has this server's vote, and the waiters.
--
-- Inputs:    none.
-- Returns:   {holders, waiters}: {number, age in us, time left in us, owner, label, break notice} of the request that has the vote, if
--            there is one; and {channel, age in us, time left in us, owner, label} of each waiter.
local holders, waiting = {}, {}
if value then
    local left = redis.call('PTTL', VOTE) * 1000
    holders[1] = {entry[1], now - entry[2], left, entry[3], entry[4], entry[5] or ''}
end
for _, waiter in ipairs(waiters()) do
    local since, expires, owner, label = unpack(waiter[2])
    table.insert(waiting, {waiter[1], now - since, expires - now, owner, label})
end
return {holders, waiting}
