-- Who has this node's vote, and who waits.
--
-- Inputs:    none.
-- Answers:   {holders, waiters}: {token, age in us, what is left in us, owner, label} of the one who has the vote, if anybody;
--            and {channel, age in us, what is left in us, owner, label} of each who waits.
local holders, waiting = {}, {}
if value then
    holders[1] = {entry[1], now - entry[2], redis.call('PTTL', LOCK) * 1000, entry[3], entry[4]}
end
for _, waiter in ipairs(waiters()) do
    local since, expires, owner, label = unpack(waiter[2])
    table.insert(waiting, {waiter[1], now - since, expires - now, owner, label})
end
return {holders, waiting}
