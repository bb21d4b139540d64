-- Breaks the holds with some tokens. Without force, each is marked with the notice: it keeps others out until it is released or expires, and
-- is not extended. With force, each is removed, and the lock is handed to the next waiters; the notice is kept for each of the former
-- holders until its lease would have expired.
--
-- Inputs:    the time when this call expires in us, name, notice, '1' for force, channel for break notices, then the tokens.
-- Returns:   {-1, clock in us}: expired. {{token, mode, age in us, time left in us, owner, label, notice or ''} for each broken hold}.
local name, notice, force = ARGV[2], ARGV[3], ARGV[4] == '1'

if now >= tonumber(ARGV[1]) then
    return {-1, now}
end
local targets = {}
for i = 6, #ARGV do
    targets[tonumber(ARGV[i])] = true
end
local live = holds()
if force then
    local flat = redis.call('HGETALL', NOTICES)
    for i = 1, #flat, 2 do
        if cmsgpack.unpack(flat[i + 1])[2] <= now then
            redis.call('HDEL', NOTICES, flat[i])
        end
    end
end
local broken = {}
for id, entry in pairs(live) do
    -- Any other hold began after the order, or was converted since.
    if targets[entry[1]] then
        if force then
            redis.call('HDEL', HOLDS, id)
            redis.call('HSET', NOTICES, id, cmsgpack.pack({notice, entry[5]}))
            keep(NOTICES, entry[5] - now)
        elseif not entry[8] then
            entry[8] = notice
            hold(id, entry)
        end
        table.insert(broken, {entry[1], entry[2], now - entry[4], entry[5] - now, entry[6], entry[7], entry[8] or ''})
    end
end
if #broken > 0 then
    redis.call('PUBLISH', ARGV[5], name)
end
if force then
    local _, conflicts = holds()
    settle(conflicts)
end
return {broken}
