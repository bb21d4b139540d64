-- Breaks the lock. Without force, every live hold is marked with the notice: it keeps others out until it is released or expires, and is
-- not extended. With force, every hold is removed, and the lock is handed to the next waiters; the notice is kept for each of the former
-- holders until its lease would have expired.
--
-- Inputs:    name, notice, '1' for force, channel for break notices.
-- Returns:   {token, mode, age in us, time left in us, owner, label, notice or ''} for each holder.
local name, notice, force = ARGV[1], ARGV[2], ARGV[3] == '1'

local live = holds()
if force then
    redis.call('DEL', HOLDS)
    local flat = redis.call('HGETALL', NOTICES)
    for i = 1, #flat, 2 do
        if cmsgpack.unpack(flat[i + 1])[2] <= now then
            redis.call('HDEL', NOTICES, flat[i])
        end
    end
end
local broken = {}
for id, entry in pairs(live) do
    if force then
        redis.call('HSET', NOTICES, id, cmsgpack.pack({notice, entry[5]}))
        keep(NOTICES, entry[5] - now)
    elseif not entry[8] then
        entry[8] = notice
        hold(id, entry)
    end
    table.insert(broken, {entry[1], entry[2], now - entry[4], entry[5] - now, entry[6], entry[7], entry[8] or ''})
end
if #broken > 0 then
    redis.call('PUBLISH', ARGV[4], name)
end
if force then
    settle(0)
end
return broken
