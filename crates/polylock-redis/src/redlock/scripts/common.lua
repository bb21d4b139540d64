-- The common part of the scripts that work on a lock. `membership.lua` precedes it.
--
-- Inputs:    KEYS: the vote for a lock; the last number accepted for it; the notices for requests with votes that were removed by force
--            (hash by request); its waiters (hash by channel); the membership of this server. All keys have the same hash tag.
-- Returns:   {word, number, ms, clock, membership, notice}, except where a script states otherwise.
-- Atomicity: a script is one step of the server. No script involves other servers.
-- Clock:     the server's, see `membership.lua`. Every reply contains it.
--
-- A vote is the request's id, 16 bytes, and {number, since, owner, label, break notice, '' if it is parked, or nil}. A waiter is {since, expires, owner,
-- label}: the longest-waiting request of one client. The last number outlives the vote, so that late messages are refused.
--
-- Times and numbers that are only passed on to a command stay texts: the conversion costs nearly as much as the command.
local VOTE, LAST, NOTICES
-- The waiters; only in a script for one lock.
local WAITING = KEYS[4]

local HELD, STALE, TOO_FAR, NO, MARKED, EXPIRED = 0, 2, 3, 4, 5, 6
-- The greatest number: a Lua number counts exactly up to 2^53, and a release accepts one number more than it withdraws.
local GREATEST = 9007199254740990

-- The vote for a lock, packed and unpacked, and the last number. `last_is_valid` is false if the stored number is damaged, or leaves no
-- room for a greater one. The comparison is false for NaN, too.
local value, entry, last, last_is_valid

-- Reads the state of the lock with keys that begin at KEYS[first].
local function read(first)
    VOTE, LAST, NOTICES = KEYS[first], KEYS[first + 1], KEYS[first + 2]
    last = tonumber(redis.call('GET', LAST) or '0')
    last_is_valid = last and last >= 0 and last < GREATEST
    value = redis.call('GET', VOTE)
    entry = value and cmsgpack.unpack(string.sub(value, 17))
end
read(1)

local function is_of(id)
    return value and string.sub(value, 1, 16) == id
end

-- Refuses every number up to and including `number` from now on, for `keep` ms unless another number is accepted.
local function accept(number, keep)
    if last_is_valid then
        last = math.max(last, number)
        redis.call('SET', LAST, text(last), 'PX', keep)
    end
end

-- Makes `key` last for at least `ms`, which is a text.
local function prolong(key, ms)
    if redis.call('PTTL', key) < tonumber(ms) then
        redis.call('PEXPIRE', key, ms)
    end
end

-- Returns the notice that is kept for a request: that of the break by force that has removed its vote, '' if the request is refused
-- (`refuse.lua`), or nil.
local function notice_of(id)
    local packed = redis.call('HGET', NOTICES, id)
    local notice = packed and cmsgpack.unpack(packed)
    return notice and notice[2] > now and notice[1] or nil
end

-- Returns the break notice for a request if its vote was removed by force, or ''.
local function notice_for(id)
    return notice_of(id) or ''
end

-- Keeps a notice for a request for `ms`, or for as long as the one before it, and removes those that are not kept any more.
local function keep_notice(id, notice, ms)
    local ends = now + ms * 1000
    local flat = redis.call('HGETALL', NOTICES)
    for i = 1, #flat, 2 do
        local other = cmsgpack.unpack(flat[i + 1])[2]
        if other <= now then
            redis.call('HDEL', NOTICES, flat[i])
        elseif flat[i] == id then
            ends = math.max(ends, other)
        end
    end
    redis.call('HSET', NOTICES, id, cmsgpack.pack({notice, ends}))
    if redis.call('PTTL', NOTICES) < ms then
        redis.call('PEXPIRE', NOTICES, ms)
    end
end

-- Returns the live waiters, {channel, entry} each, the longest-waiting first.
local function waiters()
    local live = {}
    local flat = redis.call('HGETALL', WAITING)
    for i = 1, #flat, 2 do
        local waiter = cmsgpack.unpack(flat[i + 1])
        if waiter[2] > now then
            table.insert(live, {flat[i], waiter})
        end
    end
    if #live > 1 then
        table.sort(live, function(a, b) return a[2][1] < b[2][1] end)
    end
    return live
end

-- Notifies the longest-waiting client that is still connected. If that client is too slow, it claims again by itself, as do the others.
local function notify(name)
    for _, waiter in ipairs(waiters()) do
        redis.call('HDEL', WAITING, waiter[1])
        if redis.call('PUBLISH', waiter[1], name) > 0 then
            break
        end
    end
end
