-- Who has this node's vote.
--
-- Inputs:    none.
-- Answers:   {token, age in us, what is left in us, owner, label}, or nothing.
if not value then
    return {}
end
return {entry[1], now - entry[2], redis.call('PTTL', LOCK) * 1000, entry[3], entry[4]}
