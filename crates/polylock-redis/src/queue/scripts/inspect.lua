-- Returns the holders of the lock, and its waiters in order of arrival; live entries only.
--
-- Inputs:    none.
-- Returns:   {holders, waiters}, each of them {token or -1, mode, age in us, time left in us, owner, label, break notice or ''}.
local holders, waiters = {}, {}
local flat = redis.call('HGETALL', HOLDS)
for i = 1, #flat, 2 do
    local entry = cmsgpack.unpack(flat[i + 1])
    if entry[5] > now then
        local age, left = now - entry[4], entry[5] - now
        table.insert(holders, {entry[1], entry[2], age, left, entry[6], entry[7], entry[8] or ''})
    end
end
for _, id in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do
    local packed = redis.call('HGET', WAITERS, id)
    local entry = packed and cmsgpack.unpack(packed)
    if entry and entry[4] > now then
        table.insert(waiters, {-1, entry[1], now - entry[3], entry[4] - now, entry[7], entry[8], ''})
    end
end
return {holders, waiters}
