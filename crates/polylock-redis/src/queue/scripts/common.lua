-- The common part of every script of a lock.
--
-- Inputs:    KEYS: the lock's holds (hash), its queue (sorted set by position), its waiters (hash); then two keys that all locks of a
--            prefix share: the last number drawn, and the requests that were released while a copy of their claim was in transit (sorted
--            set by the expiry of that copy); then the notices for requests with holds that were removed by force (hash). All have the same
--            hash tag, so they are in one slot of a cluster.
-- Atomicity: a script is one step of the server.
-- Clock:     the server's, read once. Times are whole microseconds since 1970, which a Lua number holds exactly until 2255.
--
-- A hold is {token, mode, conflicts, since, expires, owner, label, break notice, '' if it is parked, or nil}, a waiter {mode, conflicts, since, expires,
-- channel, ticket, owner, label}; the field of both is the id of their request. The keys expire by themselves, later than all entries in
-- them.
local HOLDS, QUEUE, WAITERS, LAST, RELEASED, NOTICES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
-- The modes that an exclusive lock conflicts with: all but NL, which conflicts with none.
local EVERYBODY = 62
-- The greatest number that can be drawn: a Lua number counts exactly up to it.
local GREATEST = 9007199254740991

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Returns the decimal digits of a number. Lua's own conversion yields 14 digits and an exponent.
local function text(number)
    return string.format('%.0f', number)
end

-- Returns the last number drawn; nil if it is damaged or leaves no room for a greater one. The comparison is false for NaN, too.
local function last_drawn()
    local last = tonumber(redis.call('GET', LAST) or '0')
    return last and last >= 0 and last < GREATEST and last or nil
end

local function no_greater_number()
    return redis.error_reply('POLYLOCKLAST ' .. LAST)
end

-- Draws a number greater than all before, of any lock: the clock's if that has advanced, so a server that has lost all its data continues
-- with greater numbers. Returns nil if there is none.
local function draw()
    local last = last_drawn()
    if not last then
        return nil
    end
    local number = math.max(now, last + 1)
    redis.call('SET', LAST, text(number))
    return number
end

-- Extends the expiry of `key` to a second after the end of an entry that lasts for `left` us.
local function keep(key, left)
    local ms = math.ceil(left / 1000) + 1000
    if redis.call('PTTL', key) < ms then
        redis.call('PEXPIRE', key, ms)
    end
end

local function hold(id, entry)
    redis.call('HSET', HOLDS, id, cmsgpack.pack(entry))
    keep(HOLDS, entry[5] - now)
end

local function leave(id)
    redis.call('HDEL', WAITERS, id)
    return redis.call('ZREM', QUEUE, id)
end

-- Returns the time until which the claims of a request that has ended are refused; 0 if they are not.
local function refused_until(id)
    return tonumber(redis.call('ZSCORE', RELEASED, id) or '0')
end

-- Refuses the claims of a request that has ended until `late`, by the clock, and for the time `elsewhere` in us from now, or longer if an
-- earlier release has said so; 0: no claim can be under way.
local function refuse(id, late, elsewhere)
    local last = math.max(tonumber(late), elsewhere == '0' and 0 or now + elsewhere)
    if last > now and last > refused_until(id) then
        redis.call('ZREMRANGEBYSCORE', RELEASED, '-inf', text(now))
        redis.call('ZADD', RELEASED, text(last), id)
        keep(RELEASED, last - now)
    end
end

-- Publishes to the channel of a client, and returns the number of receivers. In a cluster the channel is in the slot of the lock, and the
-- client is subscribed to it at the node that serves the slot. PUBLISH counts only the receivers at this node, and goes to all nodes.
local function publish(channel, message)
    local is_in_slot = string.sub(channel, 1, 1) == '{'
    return redis.call(is_in_slot and 'SPUBLISH' or 'PUBLISH', channel, message)
end

-- Returns the break notice for a request if its hold was removed by force, or nil.
local function notice_for(id)
    local packed = redis.call('HGET', NOTICES, id)
    local notice = packed and cmsgpack.unpack(packed)
    return notice and notice[2] > now and notice[1] or nil
end

-- Returns the live holds by id, the modes that conflict with one of them, and the time in us until the first of them expires. Expired holds
-- are removed.
local function holds()
    local live, conflicts, left = {}, 0, nil
    local flat = redis.call('HGETALL', HOLDS)
    for i = 1, #flat, 2 do
        local entry = cmsgpack.unpack(flat[i + 1])
        if entry[5] <= now then
            redis.call('HDEL', HOLDS, flat[i])
        else
            live[flat[i]] = entry
            conflicts = bit.bor(conflicts, entry[3])
            if entry[3] ~= 0 and (not left or entry[5] - now < left) then
                left = entry[5] - now
            end
        end
    end
    return live, conflicts, left
end

-- Hands the lock to every waiter that is next, first come, first served: to each that conflicts neither with a holder nor with a waiter
-- before it. `conflicts` contains the modes that conflict with a holder. The request `own`, if it is among them, is not notified: its hold
-- with the lease `ttl` is returned. Returns that hold, and the modes that conflict with a holder or a waiter.
--
-- Other requests hold the lock, at first, for the time left of their queue entry, and extend it when they have received the notification: a
-- client that has died holds it no longer than it would have waited. A request without a subscriber on its channel is passed over, and
-- keeps its queue entry as long as that lasts: its client has died or is reconnecting.
local function settle(conflicts, own, ttl)
    local index, mine, absent = 0, nil, {}
    -- Only requests in mode NL can overtake a request that conflicts with all other modes.
    while bit.band(conflicts, EVERYBODY) ~= EVERYBODY do
        local id = redis.call('ZRANGE', QUEUE, index, index, 'WITHSCORES')
        if #id == 0 then
            break
        end
        local place = id[2]
        id = id[1]
        local packed = redis.call('HGET', WAITERS, id)
        local waiter = packed and cmsgpack.unpack(packed)
        if not waiter or waiter[4] <= now then
            leave(id)
        elseif bit.band(waiter[1], conflicts) ~= 0 then
            conflicts = bit.bor(conflicts, waiter[2])
            index = index + 1
        elseif absent[waiter[5]] and id ~= own then
            -- This is another request of an absent client.
            index = index + 1
        else
            local token, left = draw(), waiter[4] - now
            if not token then
                break
            end
            if id == own then
                left = ttl
            end
            -- The hold is written first: a request that is notified holds the lock, whatever happens to the rest of the script.
            local entry = {token, waiter[1], waiter[2], now, now + left, waiter[7], waiter[8]}
            hold(id, entry)
            local receivers = 1
            if id == own then
                mine = entry
            else
                local message = text(waiter[6]) .. ' ' .. text(tonumber(place)) .. ' ' .. text(token) .. ' ' .. text(left)
                receivers = publish(waiter[5], message)
            end
            if receivers == 0 then
                absent[waiter[5]] = true
                redis.call('HDEL', HOLDS, id)
                index = index + 1
            else
                leave(id)
                conflicts = bit.bor(conflicts, waiter[2])
            end
        end
    end
    return mine, conflicts
end
