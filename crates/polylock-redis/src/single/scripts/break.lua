-- Takes the lock from all who hold it, and hands it to those whose turn it is then.
--
-- Inputs:    none.
-- Answers:   {token, mode, age in us, what was left in us, owner, label} for each who held it, live ones only.
local broken = {}
for _, entry in pairs(holds()) do
    table.insert(broken, {entry[1], entry[2], now - entry[4], entry[5] - now, entry[6], entry[7]})
end
redis.call('DEL', HOLDS)
settle(0)
return broken
