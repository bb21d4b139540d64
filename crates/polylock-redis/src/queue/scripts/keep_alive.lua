-- Extends live holds to their TTLs, and live queue entries to their lifetimes: a maximum, which never shortens one. Never creates or revives
-- one, and never extends a hold that is parked.
--
-- Inputs:    KEYS: for each lock its holds, queue, waiters and notices. ARGV: for each request the number of its lock in KEYS, from 0; id,
--            TTL in us, lifetime of its queue entry in us. While the slot of a lock is being moved to another node of a cluster, only the
--            key of its holds is given, because a node serves a call only if it has all its keys.
-- Returns:   for each request {time left in us, token, mode}: it holds the lock. 2: it is in the queue. 0: neither. A text: the notice of a
--            break, which has marked the hold or removed it by force; empty if the hold is parked. -1: it does not hold the lock, and the
--            other keys were not given.

-- The minimum time in ms for which each key lasts, from the calls of this script.
local lasts = {}

-- Extends the expiry of `key` to a second after the end of an entry that lasts for `left` us. It precedes HSET: a server that is out of
-- memory refuses to store more, but continues a script that has changed something, so holds and queue entries can be renewed.
local function prolong(key, left)
    local ms = math.ceil(left / 1000) + 1000
    if ms > (lasts[key] or 0) then
        lasts[key] = math.max(redis.call('PTTL', key), ms)
        redis.call('PEXPIRE', key, lasts[key])
    end
end

local function extend(id, ttl, place_ttl)
    local packed = redis.call('HGET', HOLDS, id)
    local entry = packed and cmsgpack.unpack(packed)
    if entry and entry[5] > now then
        if entry[8] then
            return entry[8]
        end
        entry[5] = math.max(entry[5], now + ttl)
        prolong(HOLDS, entry[5] - now)
        redis.call('HSET', HOLDS, id, cmsgpack.pack(entry))
        return {entry[5] - now, entry[1], entry[2]}
    end
    if not WAITERS then
        return -1
    end
    packed = redis.call('HGET', WAITERS, id)
    entry = packed and cmsgpack.unpack(packed)
    if entry and entry[4] > now then
        entry[4] = math.max(entry[4], now + place_ttl)
        prolong(QUEUE, place_ttl)
        prolong(WAITERS, place_ttl)
        redis.call('HSET', WAITERS, id, cmsgpack.pack(entry))
        return 2
    end
    return notice_for(id) or 0
end

local answers = {}
for i = 1, #ARGV, 4 do
    local first = 4 * ARGV[i]
    HOLDS, QUEUE, WAITERS, NOTICES = KEYS[first + 1], KEYS[first + 2], KEYS[first + 3], KEYS[first + 4]
    answers[#answers + 1] = extend(ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]))
end
return answers
