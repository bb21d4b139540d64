-- What every script of a node begins with.
--
-- Inputs:    KEYS: the lock, the last number accepted for it, and who waits for it (hash by channel). All have the same hash
--            tag.
-- Atomicity: a script is one step of the node. No script knows of the other nodes.
-- Clock:     the node's, read once. Every answer ends with it, in whole microseconds since 1970.
--
-- The lock's value is the request's id, 16 bytes, and {token, since, owner, label}; a waiter is {since, expires, owner, label},
-- one for each client, whoever of it has waited longest. The number outlives the lock, so that
-- whatever comes late is refused.
local LOCK, LAST, WAITING = KEYS[1], KEYS[2], KEYS[3]

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- A number's own text has 14 digits and an exponent.
local function text(number)
    return string.format('%.0f', number)
end

local last = tonumber(redis.call('GET', LAST) or '0')
local value = redis.call('GET', LOCK)
local entry = value and cmsgpack.unpack(string.sub(value, 17))

local function is_of(id)
    return value and string.sub(value, 1, 16) == id
end

-- Accepts `number`, and nothing that is not greater from now on; for so many ms, if no other is accepted.
local function accept(number, keep)
    last = math.max(last, number)
    redis.call('SET', LAST, text(last), 'PX', keep)
end

-- The live waiters, {channel, entry} each, the one who has waited longest first.
local function waiters()
    local live = {}
    local flat = redis.call('HGETALL', WAITING)
    for i = 1, #flat, 2 do
        local waiter = cmsgpack.unpack(flat[i + 1])
        if waiter[2] > now then
            table.insert(live, {flat[i], waiter})
        end
    end
    table.sort(live, function(a, b) return a[2][1] < b[2][1] end)
    return live
end

-- Wakes the one who has waited longest and still listens. If it is too slow, it comes back by itself, as do the others.
local function ring(name)
    for _, waiter in ipairs(waiters()) do
        redis.call('HDEL', WAITING, waiter[1])
        if redis.call('PUBLISH', waiter[1], name) > 0 then
            break
        end
    end
end
