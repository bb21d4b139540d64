-- The first part of every script of a server: its clock, and its membership, which determines if its votes count.
--
-- Inputs:    KEYS: the last one is the membership of this server, which all locks of a prefix share.
-- Returns:   {word, number, ms, clock, membership, notice}, except where a script states otherwise.
-- Atomicity: a script is one step of the server. No script involves other servers.
-- Clock:     the server's, read once. Every reply contains it, in whole microseconds since 1970.
local MEMBER = KEYS[#KEYS]
local SEEN = MEMBER .. ':seen'
local YES = 1

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Returns the decimal digits of a number. Lua's own conversion yields 14 digits and an exponent.
local function text(number)
    return string.format('%.0f', number)
end

-- Returns '' if this server's votes count, else 'NONCE AGE SINCE'. `run` is the run id of this server process as the client read it on this
-- connection ('' if restarts are trusted), and `observed` is 'NONCE SEEN AGE DELAY': a random nonce, the nonce that the client has seen on
-- this run of the server ('-' if none), the minimum time in ms for which it has seen it, and the time in ms that is required. `witness` is
-- 'CLOCK SINCE': the identity of a clock that all processes of the client's machine share ('-' if there is none), and the time of that clock
-- in ms at which the client has received SEEN.
--
-- The key MEMBER is 'STATE RUN 0 NONCE AGE'. It is missing on a new server and on one that has lost its data, and has another run id on one
-- that was restarted. Such a server may have forgotten votes, whatever it says of itself: its file may be older than they are, or a copy of
-- another server's, and they have expired if its clock was ahead when it read them. So its votes do not count until every lease that rested
-- on them has expired: AGE counts that time by the monotonic clocks of clients, which observe one after the other. Programs of earlier
-- versions wrote 1 instead of 0 for a server that they trusted after a restart.
--
-- The key SEEN has for each CLOCK the nonce and the SINCE of the first process that has written it, so that a later process of that machine
-- counts from there. Otherwise programs that run for a moment, one after the other, would never see the end of the delay.
local function membership(run, witness, observed)
    if run == '' then
        return ''
    end
    local member = redis.call('GET', MEMBER)
    if member and string.find(member, 'confirmed ' .. run .. ' 0 ', 1, true) == 1 then
        return ''
    end
    local state, known_run, nonce, age
    if member then
        state, known_run, nonce, age = string.match(member, '^(%l+) (%S+) [01] (%S+) (%d+)$')
    end
    local fresh, seen, seen_age, delay = string.match(observed, '^(%S+) (%S+) (%d+) (%d+)$')
    age = tonumber(age)
    if not state or known_run ~= run then
        state, nonce, age = 'new', fresh, 0
    end
    local clock, since = string.match(witness, '^(%S+) (%d+)$')
    local known_since = ''
    if state == 'new' and clock then
        local known_nonce, known = string.match(redis.call('HGET', SEEN, clock) or '', '^(%S+) (%d+)$')
        if known_nonce == nonce then
            known_since = known
        elseif seen == nonce then
            redis.call('HSET', SEEN, clock, nonce .. ' ' .. since)
            known_since = since
        end
    end
    if state == 'new' and seen == nonce and tonumber(seen_age) > age then
        age = tonumber(seen_age)
        if age >= tonumber(delay) then
            state = 'confirmed'
            redis.call('DEL', SEEN)
        end
    end
    local after = state .. ' ' .. run .. ' 0 ' .. nonce .. ' ' .. text(age)
    if after ~= member then
        redis.call('SET', MEMBER, after)
    end
    return state == 'confirmed' and '' or nonce .. ' ' .. text(age) .. ' ' .. known_since
end
